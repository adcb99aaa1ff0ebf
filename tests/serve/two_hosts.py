"""Two hosts on one machine: network namespaces with a cable between them, and nothing else in common but files.

Each has its own shared memory and its own temporary folder of Ray's, as two machines would. They end with the process
that made them.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Host", "two_hosts", "why_no_hosts"]

_INTERFACE = "cable"
_ADDRESSES = ("10.213.7.1", "10.213.7.2")


class Host:
    """`address` is how the other host reaches it."""

    def __init__(self, address: str, folder: Path, environment: Mapping[str, str]) -> None:
        """Every host mounts a temporary folder of its own at `folder`."""
        self.address = address
        self.environment = {**os.environ, "RAY_TMPDIR": str(folder), **environment}
        self._keeper = subprocess.Popen(
            ["unshare", "--net", "--mount", "sh", "-c", "echo && exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._keeper.stdout is not None
        self._keeper.stdout.readline()
        self.pid = self._keeper.pid
        for place in ("/dev/shm", str(folder)):
            self.run(["mount", "-t", "tmpfs", "tmpfs", place])

    def run(self, command: Sequence[str]) -> str:
        """What the command says. Raises CalledProcessError if it fails."""
        return subprocess.run(
            self._inside(command), env=self.environment, check=True, text=True, stdout=subprocess.PIPE
        ).stdout

    def start(self, command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self._inside(command), env=self.environment, **options)

    def close(self) -> None:
        """The host is gone once its processes are."""
        self._keeper.communicate()

    def _inside(self, command: Sequence[str]) -> list[str]:
        return ["nsenter", "--target", str(self.pid), "--net", "--mount", "--", *command]


def why_no_hosts() -> str | None:
    """Why there cannot be any here; None if there can."""
    missing = [tool for tool in ("unshare", "nsenter", "ip", "mount") if shutil.which(tool) is None]
    if missing:
        return f"network namespaces need {', '.join(missing)}"
    # an interface of this kind, too, may be forbidden
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "ip", "link", "add", _INTERFACE, "type", "veth"],
        capture_output=True,
        text=True,
        check=False,
    )
    return None if tried.returncode == 0 else f"no network namespaces here: {tried.stderr.strip()}"


@contextlib.contextmanager
def two_hosts(environment: Mapping[str, str]) -> Iterator[tuple[Host, Host]]:
    """`environment` is set for all that runs on them."""
    # Ray's sockets are in it: their paths must be short.
    with tempfile.TemporaryDirectory(prefix="goose-") as folder, contextlib.ExitStack() as hosts:
        first, second = (Host(address, Path(folder), environment) for address in _ADDRESSES)
        for host in (first, second):
            hosts.callback(host.close)
        peer = ["peer", "name", _INTERFACE, "netns", str(second.pid)]
        first.run(["ip", "link", "add", _INTERFACE, "type", "veth", *peer])
        for host in (first, second):
            host.run(["ip", "address", "add", f"{host.address}/24", "dev", _INTERFACE])
            for interface in (_INTERFACE, "lo"):
                host.run(["ip", "link", "set", interface, "up"])
        yield first, second
