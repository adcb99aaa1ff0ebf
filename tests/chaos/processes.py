"""The processes of a Serve application that this process' cluster runs, by what they are for: who is there, what each
holds open. Reads /proc; knows nothing about faults.
"""

import os
import signal
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from serve.helpers import is_ours

from goose_ray.engine import grammar_trial_process

__all__ = [
    "AGGREGATOR",
    "CONTROLLER",
    "INGRESS",
    "PROXY",
    "REPLICA",
    "ROLES",
    "Process",
    "find",
    "find_grammar_trials",
    "free_mb",
    "send",
]

REPLICA, INGRESS, PROXY, CONTROLLER, AGGREGATOR = "replica", "ingress", "proxy", "controller", "aggregator"
# By what Ray writes over an actor's command line; behind it stands the method that it is in, if it is in one.
ROLES = {
    REPLICA: "ray::ServeReplica:goose:GooseServer",
    INGRESS: "ray::ServeReplica:goose:OpenAIIngress",
    PROXY: "ray::ProxyActor",
    CONTROLLER: "ray::ServeController",
    AGGREGATOR: "ray::AcceptanceAggregator",
}


@dataclass(frozen=True)
class Process:
    role: str
    pid: int

    def num_files(self) -> int:
        """Open file descriptors; 0 if it has ended."""
        try:
            return len(os.listdir(f"/proc/{self.pid}/fd"))
        except OSError:
            return 0

    def num_connections(self, port: int) -> int:
        """Of clients to `port` of this machine, from the side of the one who serves it."""
        inodes = set()
        for line in Path(f"/proc/{self.pid}/net/tcp").read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if local.endswith(f":{port:04X}") and state != _LISTEN:
                inodes.add(f"socket:[{line.split()[9]}]")
        return sum(target in inodes for target in self._targets())

    def rss_mb(self) -> float:
        """Resident memory that is not shared with others; 0 if it has ended."""
        try:
            pages = Path(f"/proc/{self.pid}/statm").read_text().split()
        except OSError:
            return 0.0
        return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def _targets(self) -> list[str]:
        targets = []
        for entry in os.listdir(f"/proc/{self.pid}/fd"):
            try:
                targets.append(os.readlink(f"/proc/{self.pid}/fd/{entry}"))
            except OSError:
                # closed between the two looks
                continue
        return targets


_LISTEN = "0A"


def find() -> list[Process]:
    """Those that descend from this process: other clusters of this machine are not ours. Sorted by role and pid."""
    found = []
    for pid, command in _commands():
        for role, start in ROLES.items():
            if command.startswith(start) and is_ours(pid):
                found.append(Process(role, pid))
    return sorted(found, key=lambda process: (process.role, process.pid))


def find_grammar_trials() -> list[Process]:
    """What replicas try grammars in, without its children; they come and go, so that no stage counts them."""
    return [
        Process("grammar trial", pid)
        for pid, command in _commands()
        if command.endswith(grammar_trial_process.__name__) and is_ours(pid) and _leads(pid)
    ]


def _leads(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def _commands() -> Iterator[tuple[int, str]]:
    """Of every process of this machine its number and its command line, with NULs between its words."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            yield int(entry.name), (entry / "cmdline").read_text(errors="replace").rstrip("\0")
        except OSError:
            continue


def free_mb() -> float:
    """Memory that the machine could still give."""
    (line,) = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:")]
    return int(line.split()[1]) / 1024


def send(processes: Collection[Process], number: signal.Signals) -> None:
    """One that has ended already gets nothing."""
    for process in processes:
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            continue
