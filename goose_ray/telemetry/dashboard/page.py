"""The page at `/dashboard`: one HTML text that asks for nothing but its own JSON.

Style and scripts stand in the page; the policy that comes with it allows exactly these, by their hashes, and
connections to this server alone. So it works without internet, and nothing that a name or text says can run in it.
"""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

__all__ = ["DashboardPage", "dashboard_page"]

_SCRIPTS = ("figures.js", "charts.js", "page.js")


@dataclass(frozen=True, slots=True)
class DashboardPage:
    html: str
    headers: Mapping[str, str]
    media_type: str = "text/html; charset=utf-8"


@cache
def dashboard_page() -> DashboardPage:
    static = files(__package__) / "static"
    style = (static / "page.css").read_text("utf-8")
    # One scope for all of them, and none of their names outside it.
    script = "(() => {\n" + "\n".join((static / name).read_text("utf-8") for name in _SCRIPTS) + "\n})();\n"
    html = (static / "page.html").read_text("utf-8").replace("/*style*/", style).replace("/*script*/", script)
    policy = (
        f"default-src 'none'; script-src '{_hash_of(script)}'; style-src '{_hash_of(style)}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    return DashboardPage(html, headers)


def _hash_of(text: str) -> str:
    """As a content security policy has it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
