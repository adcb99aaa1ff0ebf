"""Prefixes whose KV is computed, kept for whoever continues them: a radix tree over runs of tokens.

A node is a run of tokens with the KV slots they are in; a path from a root spells a prefix. There is a root for each
`cache_salt` (None has one of its own), so that texts under different salts never meet. Who uses a prefix pins it, and
with it every node of its path; what is not pinned may be evicted, the tail of the least recently used leaf first.
Only committed tokens may be entered. Owns the slots it was given, frees them in the allocator, allocates none.

Knows neither sequences nor the tensors behind the slots.
"""

import heapq
from collections.abc import Iterator

import numpy as np

from goose.tree import IntArray
from goose_ray.engine.kv_cache import SlotAllocator

__all__ = ["Pin", "PrefixCache", "common_length"]


class _Node:
    __slots__ = ("children", "end", "is_queued", "last_use", "num_pins", "parent", "salt", "slots", "tokens")

    def __init__(self, tokens: IntArray, slots: IntArray, parent: "_Node | None", salt: str | None) -> None:
        # [length] int64 both; empty in a root
        self.tokens = tokens
        self.slots = slots
        self.parent = parent
        self.salt = salt
        # length of the prefix that ends with this node
        self.end: int = len(tokens) + (parent.end if parent is not None else 0)
        # by first token
        self.children: dict[int, _Node] = {}
        # pins of this node and of all below it
        self.num_pins = 0
        self.last_use = 0
        # stands in the eviction queue
        self.is_queued = False


class Pin:
    """A prefix in use: valid until it is released."""

    __slots__ = ("node",)

    def __init__(self, node: _Node) -> None:
        self.node: _Node | None = node

    @property
    def num_tokens(self) -> int:
        return self.held.end

    @property
    def held(self) -> _Node:
        """Raises ValueError once the pin is released."""
        if self.node is None:
            raise ValueError("this prefix is no longer pinned")
        return self.node

    def slots(self) -> IntArray:
        """[num_tokens] int64, a copy."""
        return _slots_of(self.held, 0)


class PrefixCache:
    def __init__(self, allocator: SlotAllocator) -> None:
        self._allocator = allocator
        self._roots: dict[str | None, _Node] = {}
        self._num_cached = 0
        self._num_evictable = 0
        # Leaves by last use. An entry may be out of date (used since, pinned, no leaf any more), which shows when it
        # comes up; no node stands in it twice.
        self._queue: list[tuple[int, int, _Node]] = []
        self._clock = 0
        self._num_queued = 0

    @property
    def num_cached(self) -> int:
        """Slots owned."""
        return self._num_cached

    @property
    def num_pins(self) -> int:
        return sum(root.num_pins for root in self._roots.values())

    @property
    def num_evictable(self) -> int:
        """Slots owned that no pin holds."""
        return self._num_evictable

    def pin(self, token_ids: IntArray, salt: str | None) -> Pin:
        """Pins the longest known prefix of the tokens, which may be empty."""
        node = self._roots.get(salt)
        if node is None:
            node = self._roots[salt] = _Node(_NOTHING, _NOTHING, None, salt)
        self._hold(node)
        return Pin(self._descend(node, token_ids))

    def extend(self, pin: Pin, token_ids: IntArray, slots: IntArray) -> IntArray:
        """Enters the tokens behind the pinned prefix, and moves the pin to their end.

        `slots` [n] int64 are those of the last n of `token_ids`, n being `len(token_ids) - pin.num_tokens`. Returns the
        slots [k] of the first k of these, which were known already: the caller's slots of those stay the caller's, the
        others become the cache's. Raises ValueError, changing nothing, if the number of slots is another.
        """
        start = pin.num_tokens
        if len(slots) != len(token_ids) - start:
            raise ValueError(f"{len(slots)} slots for {len(token_ids) - start} tokens behind the prefix")
        node = self._descend(pin.held, token_ids)
        known = node.end - start
        held = _slots_of(node, start)
        if known < len(slots):
            node = self._append(node, token_ids[node.end :].copy(), slots[known:].copy())
        pin.node = node
        return held

    def release(self, pin: Pin) -> None:
        """Raises ValueError if the pin was released before."""
        end = pin.held
        pin.node = None
        self._clock += 1
        for node in _path(end, include_root=True):
            node.num_pins -= 1
            node.last_use = self._clock
            if not node.num_pins:
                self._num_evictable += len(node.slots)
        self._became_loose(end)

    def evict(self, count: int, *, at_once: int = 1) -> None:
        """Frees `count` slots, least recently used first, and of each run at least `at_once`, or all that it has.

        Raises RuntimeError, changing nothing, if fewer than `count` are evictable.
        """
        if count > self._num_evictable:
            raise RuntimeError(f"{count} cached KV slots are to be evicted, {self._num_evictable} may be")
        while count > 0:
            last_use, _, node = heapq.heappop(self._queue)
            node.is_queued = False
            if node.num_pins or node.children:
                continue
            if node.last_use != last_use:
                self._enqueue(node)
                continue
            count -= self._evict_tail(node, max(count, at_once))

    def check_integrity(self) -> None:
        """Raises RuntimeError unless runs join, counts add up and everything that may be evicted is queued."""
        nodes = [node for root in self._roots.values() for node in _below(root)]
        slots = np.concatenate([_NOTHING, *(node.slots for node in nodes)])
        if len(slots) != self._num_cached or len(np.unique(slots)) != len(slots):
            raise RuntimeError(
                f"{len(slots)} cached KV slots, {len(np.unique(slots))} different, {self._num_cached} known"
            )
        loose = sum(len(node.slots) for node in nodes if not node.num_pins)
        if loose != self._num_evictable:
            raise RuntimeError(f"{loose} cached KV slots are not pinned, {self._num_evictable} are counted")
        for node in nodes:
            if len(node.tokens) != len(node.slots) or (node.parent is not None and not len(node.tokens)):
                raise RuntimeError(f"a run of {len(node.tokens)} tokens has {len(node.slots)} slots")
            if node.end != (node.parent.end if node.parent else 0) + len(node.tokens):
                raise RuntimeError(f"a prefix of {node.end} tokens ends in the wrong place")
            if any(child.parent is not node or child.tokens[0] != first for first, child in node.children.items()):
                raise RuntimeError("a run hangs in the wrong place")
            if node.num_pins < sum(child.num_pins for child in node.children.values()):
                raise RuntimeError("a run is pinned less often than what continues it")
            if not (node.num_pins or node.children or node.is_queued):
                raise RuntimeError("a run that may be evicted is not queued, or an empty root was kept")

    def _descend(self, node: _Node, token_ids: IntArray) -> _Node:
        """Pins on, from the pinned `node`, as far as the tokens are known."""
        while node.end < len(token_ids):
            child = node.children.get(int(token_ids[node.end]))
            if child is None:
                break
            common = common_length(child.tokens, token_ids[node.end :])
            node = child if common == len(child.tokens) else self._split(child, common)
            self._hold(node)
            if node is not child:
                break
        return node

    def _hold(self, node: _Node) -> None:
        if not node.num_pins:
            self._num_evictable -= len(node.slots)
        node.num_pins += 1

    def _split(self, node: _Node, length: int) -> _Node:
        """The new node of the first `length` tokens; `node` itself, to which pins may point, keeps the others."""
        assert node.parent is not None
        upper = _Node(node.tokens[:length].copy(), node.slots[:length].copy(), node.parent, node.salt)
        upper.num_pins, upper.last_use = node.num_pins, node.last_use
        node.tokens, node.slots, node.parent = node.tokens[length:].copy(), node.slots[length:].copy(), upper
        upper.children[int(node.tokens[0])] = node
        assert upper.parent is not None
        upper.parent.children[int(upper.tokens[0])] = upper
        return upper

    def _append(self, node: _Node, tokens: IntArray, slots: IntArray) -> _Node:
        """Takes over the slots, as a pinned continuation of the pinned `node`."""
        self._num_cached += len(slots)
        if node.parent is not None and node.num_pins == 1 and not node.children:
            # Nobody else's: one run grows, where a prompt comes in chunks.
            node.tokens = np.concatenate((node.tokens, tokens))
            node.slots = np.concatenate((node.slots, slots))
            node.end += len(tokens)
            return node
        child = _Node(tokens, slots, node, node.salt)
        child.num_pins = 1
        node.children[int(tokens[0])] = child
        return child

    def _evict_tail(self, node: _Node, count: int) -> int:
        """Frees up to `count` slots of a leaf, the last ones."""
        kept = max(0, len(node.slots) - count)
        evicted = node.slots[kept:]
        self._allocator.free(evicted)
        self._num_cached -= len(evicted)
        self._num_evictable -= len(evicted)
        if kept:
            node.end -= len(evicted)
            node.tokens, node.slots = _trimmed(node.tokens, kept), _trimmed(node.slots, kept)
            self._enqueue(node)
        else:
            parent = node.parent
            assert parent is not None
            del parent.children[int(node.tokens[0])]
            self._became_loose(parent)
        return len(evicted)

    def _became_loose(self, node: _Node) -> None:
        if node.num_pins or node.children:
            return
        if node.parent is None:
            del self._roots[node.salt]
        elif not node.is_queued:
            self._enqueue(node)

    def _enqueue(self, node: _Node) -> None:
        node.is_queued = True
        self._num_queued += 1
        heapq.heappush(self._queue, (node.last_use, self._num_queued, node))


_NOTHING: IntArray = np.empty(0, dtype=np.int64)


def _path(node: _Node, down_to: int = 0, *, include_root: bool = False) -> Iterator[_Node]:
    """From the node upwards, without those that end at or before `down_to`."""
    at: _Node | None = node
    while at is not None and (at.end > down_to or include_root):
        yield at
        at = at.parent


def _slots_of(node: _Node, start: int) -> IntArray:
    """Slots from position `start`, where a node begins, to the end of `node`."""
    runs = [above.slots for above in _path(node, start)]
    return np.concatenate(runs[::-1]) if runs else _NOTHING


def _below(node: _Node) -> Iterator[_Node]:
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(node.children.values())


def common_length(a: IntArray, b: IntArray) -> int:
    """How far two runs of tokens agree."""
    length = min(len(a), len(b))
    differs = a[:length] != b[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length


def _trimmed(array: IntArray, length: int) -> IntArray:
    """The first `length`; a copy once that is worth the memory it gives back."""
    view = array[:length]
    whole = array if array.base is None else array.base
    return view.copy() if 2 * length < len(whole) else view
