"""Who holds which KV slot: a sequence, the prefix cache, or nobody.

A running sequence's context is a prefix that the cache owns and the sequence pins, then slots of its own. What it has
computed is entered in the cache when a part of its prompt is, and when it leaves, finished, cancelled or preempted:
so a prompt is shared while its first request still runs, the next turn of a conversation finds the last one, and a
preempted sequence finds its own tokens. Cached slots that nobody pins count as available: they are evicted on demand.
Only committed tokens enter; rejected nodes' slots never come here but to be freed.
"""

from collections.abc import Iterable

from goose.tree import IntArray
from goose_ray.engine.kv_cache import SlotAllocator
from goose_ray.engine.prefix_cache import PrefixCache
from goose_ray.engine.sequence import SequenceState

__all__ = ["KVMemory"]


class KVMemory:
    """`prefix_cache` false: nothing outlives the sequence that computed it."""

    def __init__(self, num_slots: int, *, prefix_cache: bool) -> None:
        self._allocator = SlotAllocator(num_slots)
        self._cache = PrefixCache(self._allocator) if prefix_cache else None

    @property
    def num_slots(self) -> int:
        return self._allocator.num_slots

    @property
    def num_available(self) -> int:
        """Slots that `allocate` can give."""
        return self._allocator.num_free + self._num_evictable

    @property
    def num_used(self) -> int:
        """Slots that a sequence needs; cached ones that nobody pins are not among them."""
        return self._allocator.num_used - self._num_evictable

    @property
    def _num_evictable(self) -> int:
        return self._cache.num_evictable if self._cache is not None else 0

    def allocate(self, count: int) -> IntArray:
        """[count] int64; evicts what is needed. Raises RuntimeError if fewer are available."""
        missing = count - self._allocator.num_free
        if self._cache is not None and missing > 0:
            self._cache.evict(missing)
        return self._allocator.allocate(count)

    def free(self, slots: IntArray) -> None:
        """Gives back slots that `allocate` gave and that no sequence has in its context."""
        self._allocator.free(slots)

    def attach(self, sequence: SequenceState) -> None:
        """Begins the context of a sequence without one by what is cached of its tokens, the last one left out.

        The last token is the anchor, whose logits are needed.
        """
        if self._cache is None:
            return
        sequence.prefix = self._cache.pin(sequence.tokens.view()[:-1], sequence.request.cache_salt)
        sequence.context_slots.extend(sequence.prefix.slots())

    def publish(self, sequence: SequenceState) -> None:
        """Enters what the sequence has computed of its committed tokens; others that have the same share it now."""
        if self._cache is None or sequence.prefix is None:
            return
        start = sequence.prefix.num_tokens
        # A stop condition inside the accepted run leaves nodes computed that were not committed.
        end = min(sequence.num_computed, sequence.num_tokens)
        if end > start:
            slots = sequence.context_slots.view()[start:end]
            sequence.context_slots.overwrite(
                start, self._cache.extend(sequence.prefix, sequence.tokens.view()[:end], slots)
            )

    def release(self, sequence: SequenceState) -> None:
        """Publishes the sequence's context and takes it away."""
        self.publish(sequence)
        num_shared = 0
        if self._cache is not None and sequence.prefix is not None:
            num_shared = sequence.prefix.num_tokens
            self._cache.release(sequence.prefix)
            sequence.prefix = None
        self._allocator.free(sequence.context_slots.view(num_shared))
        sequence.context_slots.clear()

    def check_integrity(self, sequences: Iterable[SequenceState]) -> None:
        """Raises RuntimeError unless each slot is free, one sequence's own or cached, and each pin a sequence's."""
        self._allocator.check_integrity()
        own = cached = pins = 0
        for sequence in sequences:
            num_shared = 0
            if sequence.prefix is not None:
                shared = sequence.prefix.slots()
                num_shared, pins = len(shared), pins + 1
                if (sequence.context_slots.view()[:num_shared] != shared).any():
                    raise RuntimeError(f"request {sequence.request_id!r} does not hold the slots of its prefix")
            own += sequence.num_computed - num_shared
        if self._cache is not None:
            self._cache.check_integrity()
            cached = self._cache.num_cached
            if self._cache.num_pins != pins:
                raise RuntimeError(f"{self._cache.num_pins} prefixes are pinned, {pins} of them by a sequence")
        if own + cached != self._allocator.num_used:
            raise RuntimeError(
                f"{self._allocator.num_used} KV slots are used, {own} are some sequence's own and {cached} cached"
            )
