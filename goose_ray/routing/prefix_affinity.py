"""Which replica should have a prompt: the one that knows most of it, unless others are less busy by more than that is
worth.

Three things are weighed. What this router has sent a replica lately, block by block, up to about what its prefix cache
holds: the blocks that a replica would have to compute are its price. How busy it is: each request that it has more than
the least busy one, beyond a lead, is priced in blocks too. And the prompt's *home*, which settles ties, and is thought
to know what this router should have seen of a conversation and did not.

Home is the replica of the highest random weight (rendezvous hashing) for the prompt's head among those whose caches are
not filled faster than the others'. So routers that never talk send a conversation to the same place, a replica that
comes or goes moves its own share alone, and no cache loses conversations while another has room.

Only a few replicas are weighed, whatever their number: those that know most, the home, and two at random. A prompt
shorter than a block goes to the less busy of two at random. Knows neither Serve nor requests.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from random import Random

from goose_ray.routing.prompt_key import PromptKey

__all__ = ["PrefixAffinity"]

# What one more request before ours costs, in blocks, and by how many requests a replica may lead for nothing: queue
# lengths are known late, and differ by chance.
_REQUEST_BLOCKS, _LEAD = 4, 1
# Replicas that know something of a prompt, of which the price is looked at.
_MAX_HOLDERS = 4
# By how much more than the mean of all a replica may have been filled lately: a part of it, and some blocks.
_UNEVEN, _UNEVEN_BLOCKS = 0.1, 16
# By how much a conversation that begins is expected to grow.
_GROWTH_BLOCKS = 16
_MASK = (1 << 64) - 1


class PrefixAffinity:
    """Replicas are known by names that are the same in every process. Remembers `blocks_per_replica` of each."""

    def __init__(self, *, blocks_per_replica: int, rng: Random | None = None) -> None:
        if blocks_per_replica < 1:
            raise ValueError(f"blocks_per_replica must be at least 1, not {blocks_per_replica}")
        self._capacity = blocks_per_replica
        self._rng = rng or Random()
        # name -> a number that stands for it; and the blocks it was sent, those used last at the end
        self._numbers: dict[str, int] = {}
        self._sent: dict[str, OrderedDict[int, None]] = {}
        # block -> the replicas that were sent it
        self._holders: dict[int, set[str]] = {}
        # blocks that were new to a replica; they weigh half when as many as all replicas hold have come since
        self._filled: dict[str, float] = {}

    def set_replicas(self, names: Iterable[str]) -> None:
        """Those that there are. What was sent to others is forgotten."""
        names = set(names)
        for gone in self._numbers.keys() - names:
            del self._numbers[gone], self._filled[gone]
            for block in self._sent.pop(gone):
                self._drop(block, gone)
        # sorted: a set's order is another in each process, and what is drawn goes by the order
        for new in sorted(names - self._numbers.keys()):
            self._numbers[new] = int.from_bytes(blake2b(new.encode(), digest_size=8).digest(), "big")
            self._sent[new] = OrderedDict()
            self._filled[new] = 0.0

    def candidates(self, key: PromptKey) -> dict[str, int]:
        """Replicas worth weighing, and how many of the prompt's blocks each is thought to know. Empty only if there are
        none.
        """
        if not self._numbers:
            return {}
        known = self._known(key)
        names = list(self._numbers)
        others = names if len(names) <= 2 else self._rng.sample(names, 2)
        if key.blocks:
            home = self.home(key)
            others = [*others, home]
            if max(known.values(), default=0) < key.past:
                # The last turn went by another router, or is forgotten.
                known[home] = key.past
        return {name: known.get(name, 0) for name in (*known, *others)}

    def ranked(
        self, key: PromptKey, known: Mapping[str, int], loads: Mapping[str, int], *, avoid: str | None = None
    ) -> list[str]:
        """The replicas of `loads`, their numbers of requests, the best one first and `avoid` last. `known` is as
        `candidates` gave it.
        """
        least = min((load for name, load in loads.items() if name != avoid), default=0)
        lead, home = (_LEAD, self.home(key)) if key.blocks else (0, None)

        def price(name: str) -> tuple[bool, int, bool, float]:
            busier = max(0, loads[name] - least - lead)
            blocks = busier * _REQUEST_BLOCKS + len(key.blocks) - known[name]
            return name == avoid, blocks, name != home, self._rng.random()

        return sorted(loads, key=price)

    def home(self, key: PromptKey) -> str:
        """Raises ValueError if there are no replicas."""
        most = (1 + _UNEVEN) * sum(self._filled.values()) / max(1, len(self._filled)) + _UNEVEN_BLOCKS
        return max(
            (name for name, filled in self._filled.items() if filled <= most),
            key=lambda name: _mixed(key.head ^ self._numbers[name]),
        )

    def sent(self, key: PromptKey, name: str) -> None:
        """The replica took the prompt. Nothing if it is no longer there."""
        blocks = self._sent.get(name)
        if blocks is None:
            return
        num_new = 0
        # Backwards: a prompt's end is forgotten before its beginning, as in the replica's cache.
        for block in reversed(key.blocks[: self._capacity]):
            if block in blocks:
                blocks.move_to_end(block)
            else:
                num_new += 1
                blocks[block] = None
                self._holders.setdefault(block, set()).add(name)
        while len(blocks) > self._capacity:
            self._drop(blocks.popitem(last=False)[0], name)
        kept = 0.5 ** (num_new / (self._capacity * len(self._filled)))
        self._filled = {each: kept * filled for each, filled in self._filled.items()}
        self._filled[name] += num_new + (_GROWTH_BLOCKS if key.blocks and not key.past else 0)

    def _known(self, key: PromptKey) -> dict[str, int]:
        """How many blocks a replica was sent, of the few that were sent most."""
        known: dict[str, int] = {}
        for length in range(len(key.blocks), 0, -1):
            new = sorted(self._holders.get(key.blocks[length - 1], _NOBODY) - known.keys())
            room = _MAX_HOLDERS - len(known)
            known |= dict.fromkeys(new if len(new) <= room else self._rng.sample(new, room), length)
            if len(known) == _MAX_HOLDERS:
                break
        return known

    def _drop(self, block: int, name: str) -> None:
        holders = self._holders[block]
        holders.discard(name)
        if not holders:
            del self._holders[block]


_NOBODY: frozenset[str] = frozenset()


def _mixed(number: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB & _MASK
    return number ^ (number >> 31)
