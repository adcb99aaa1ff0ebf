"""Every kind of fault: what happens, what clients may notice of it, and within what time all must be as before."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random

from chaos import client_faults, disk_faults
from chaos.process_faults import kill, kill_grammar_trials, pause, stop
from chaos.processes import AGGREGATOR, CONTROLLER, INGRESS, PROXY, REPLICA
from chaos.stage import Stage

__all__ = ["KINDS", "Draw", "Kind", "dealt", "named"]


@dataclass(frozen=True)
class Kind:
    """`interrupts`: requests of others may be refused with a 5xx or cut off; else nobody notices.

    `within_s`: until every process is there and answers, on a machine that does nothing else. `weight`: how often it
    happens, next to the others.
    """

    name: str
    happen: Callable[[Stage, Random], Awaitable[None]]
    interrupts: bool = False
    within_s: float = 10.0
    weight: int = 2


KINDS: tuple[Kind, ...] = (
    Kind("kill a replica", kill(REPLICA), within_s=60, weight=3),
    Kind("kill both replicas", kill(REPLICA, REPLICA), interrupts=True, within_s=60, weight=1),
    Kind("kill the ingress", kill(INGRESS), interrupts=True, within_s=60),
    Kind("kill the proxy", kill(PROXY), interrupts=True, within_s=60),
    Kind("kill the controller", kill(CONTROLLER), within_s=60),
    Kind("kill the aggregator", kill(AGGREGATOR), within_s=60),
    Kind("kill a replica and the aggregator", kill(REPLICA, AGGREGATOR), within_s=60, weight=1),
    Kind("kill a replica and the ingress", kill(REPLICA, INGRESS), interrupts=True, within_s=60, weight=1),
    Kind("kill a replica and the controller", kill(REPLICA, CONTROLLER), within_s=90, weight=1),
    Kind("kill what grammars are tried in", kill_grammar_trials),
    Kind("pause a replica", pause(REPLICA)),
    Kind("pause the ingress", pause(INGRESS)),
    Kind("pause the proxy", pause(PROXY)),
    Kind("pause the controller", pause(CONTROLLER)),
    Kind("pause the aggregator", pause(AGGREGATOR)),
    Kind("stop a replica", stop(REPLICA), within_s=90, weight=1),
    Kind("stop the ingress", stop(INGRESS), interrupts=True, within_s=90, weight=1),
    Kind("stop the proxy", stop(PROXY), interrupts=True, within_s=90, weight=1),
    Kind("full disk: replicas", disk_faults.full(REPLICA)),
    Kind("full disk: ingress", disk_faults.full(INGRESS)),
    Kind("full disk: proxy", disk_faults.full(PROXY)),
    Kind("full disk: controller", disk_faults.full(CONTROLLER)),
    Kind("full disk: aggregator", disk_faults.full(AGGREGATOR)),
    Kind("snapshots cannot be written", disk_faults.snapshot_in_the_way, within_s=60, weight=1),
    Kind("the snapshot is rubbish", disk_faults.snapshot_of_rubbish, within_s=60, weight=1),
    Kind("a slow reader", client_faults.read_slowly, weight=3),
    Kind("a slow writer", client_faults.write_slowly, weight=3),
    Kind("half-open connections", client_faults.half_open, weight=3),
    Kind("streams are left", client_faults.leave_streams, weight=3),
    Kind("a flood", client_faults.flood, within_s=30),
    Kind("300 connections", client_faults.many_connections, weight=3),
    Kind("nonsense for HTTP", client_faults.send_nonsense, weight=3),
    Kind("pipelined requests", client_faults.pipeline, weight=3),
)


def named(name: str) -> Kind:
    (found,) = [kind for kind in KINDS if kind.name == name]
    return found


@dataclass(frozen=True)
class Draw:
    """The `number`-th fault of a run, from 1. What is random in it depends on nothing but seed and number."""

    number: int
    kind: Kind
    seed: int

    def random(self) -> Random:
        return Random(f"{self.seed}/{self.number}")


def dealt(seed: int, count: int) -> list[Draw]:
    """In random order, each kind as often as its weight says. More of them begin with the same ones."""
    random = Random(seed)
    deck: list[Kind] = []
    while len(deck) < count:
        deck += random.sample(KINDS, counts=[kind.weight for kind in KINDS], k=sum(kind.weight for kind in KINDS))
    return [Draw(number, kind, seed) for number, kind in enumerate(deck[:count], 1)]
