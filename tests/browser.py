"""A headless Chromium for tests of pages: what a page became, what it complained of, and pictures of it.

`GOOSE_CHROMIUM` names the binary (`chromium-headless-shell` of Debian, or any Chromium); without it those tests are
skipped.
"""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["Browser", "Visit", "browser_in"]

_TIMEOUT_S = 180
# of the page's own clock, which runs ahead while nothing is loading
_PAGE_MS = 7000


@dataclass(frozen=True, slots=True)
class Visit:
    """`html` is the document after its scripts ran, `complaints` what the console has."""

    html: str
    complaints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Browser:
    binary: str
    folder: Path

    def visit(self, url: str) -> Visit:
        return self._run(url, "--dump-dom")

    def picture(self, url: str, file: Path, *, width: int, height: int, dark: bool = False) -> Visit:
        scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
        return self._run(url, f"--screenshot={file}", f"--window-size={width},{height}", *scheme)

    def _run(self, url: str, *options: str) -> Visit:
        command = [
            self.binary,
            "--headless",
            "--disable-gpu",
            "--hide-scrollbars",
            "--enable-logging=stderr",
            f"--virtual-time-budget={_PAGE_MS}",
            f"--user-data-dir={self.folder}/profile",
            # root has no sandbox
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            *options,
            url,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
        complaints = re.findall(r":CONSOLE[:(]\d+\)?\] (.*)", done.stderr)
        return Visit(done.stdout, tuple(complaints))


def browser_in(folder: Path) -> Browser:
    binary = os.environ.get("GOOSE_CHROMIUM")
    if not binary:
        pytest.skip("GOOSE_CHROMIUM names no browser")
    return Browser(binary, folder)
