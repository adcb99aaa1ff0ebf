"""What `goose serve` prints when it is ready: where the model is served, and what to type next."""

import shlex
import shutil
import sys
from pathlib import Path

__all__ = ["program", "ready_text"]


def program(name: str) -> str:
    """How `name`, installed beside the program that runs, is typed here: by its name if the shell finds it, else by
    its path.
    """
    beside = Path(sys.argv[0]).with_name(name)
    if not beside.is_file():
        return name
    found = shutil.which(name)
    return name if found is not None and beside.samefile(found) else shlex.quote(str(beside))


def ready_text(model: str, url: str, *, dashboard: str | None, has_token: bool, has_keys: bool = False) -> str:
    """`dashboard`: HOST:PORT of Ray's, None or empty where there is none. `has_token`: Ray's clients need its token.
    `has_keys`: the server asks for API keys.
    """
    key = " --api-key KEY" if has_keys else ""
    lines = [
        f"{model} is served at {url}/v1, to be watched at {url}/dashboard.",
        f"Try `{program('goose')} chat --base-url {url}{key}`. Ctrl-C stops the server.",
    ]
    if dashboard:
        token = "RAY_AUTH_MODE=token " if has_token else ""
        lines.append(f"Ray's view of it: `{token}{program('serve')} status --address http://{dashboard}`.")
    return "\n".join(lines)
