"""Who holds which KV slot: a sequence, the prefix cache, or nobody.

A running sequence's context is a prefix that the cache owns and the sequence pins, then slots of its own. What it has
computed is entered in the cache when a part of its prompt is, and when it leaves, finished, cancelled or preempted: so
a prompt is shared while its first request still runs, the next turn of a conversation finds the last one, and a
preempted sequence finds its own tokens. A short common beginning is computed again all the same: that slots lie apart
costs in every step. Cached slots that nobody pins count as available: they are evicted on demand. Only committed tokens
enter; rejected nodes' slots never come here but to be freed.
"""

from collections.abc import Iterable, Sequence

from goose.tree import IntArray
from goose_ray.engine.kv_cache import Region, SlotAllocator
from goose_ray.engine.prefix_cache import PrefixCache, common_length
from goose_ray.engine.sequence import SequenceState

__all__ = ["KVMemory"]

# max_tokens is often far more than what is generated: a region has room for the prompt and this part of the pool.
_MAX_GROWTH_SHARE = 32
# A shared beginning of at least so many tokens, or of half the text, is worth more than slots that lie together: to
# compute a token costs about as much as to gather a context of 512 in one step (CPU, 135M parameters).
_MIN_SHARED_TOKENS = 64
# Fewer are not worth a step's wait.
_MIN_AWAITED_TOKENS = 16


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

    def allocate(self, wanted: Sequence[tuple[SequenceState, int]]) -> IntArray:
        """As many slots for each sequence, all together; evicts what is needed. Raises RuntimeError if fewer are
        available.
        """
        for sequence, count in wanted:
            if sequence.region is None:
                sequence.region = self._region_of(sequence, count)
        missing = sum(count for _, count in wanted) - self._allocator.num_free
        if self._cache is not None and missing > 0:
            self._cache.evict(missing)
        return self._allocator.allocate_all([(count, sequence.region) for sequence, count in wanted])

    def free(self, slots: IntArray) -> None:
        """Gives back slots that `allocate` gave and that no sequence has in its context."""
        self._allocator.free(slots)

    def attach(self, sequence: SequenceState) -> None:
        """Begins the context of a sequence without one by what is cached of its tokens, the last one left out.

        The last token is the anchor, whose logits are needed.
        """
        if self._cache is None:
            return
        pin = self._cache.pin(sequence.tokens.view()[:-1], sequence.request.cache_salt)
        if _may_share(sequence) and _is_worth_sharing(pin.num_tokens, sequence):
            sequence.context_slots.extend(pin.slots())
        else:
            self._cache.release(pin)
            pin = self._cache.pin(sequence.tokens.view()[:0], sequence.request.cache_salt)
        sequence.prefix = pin

    def will_share(self, sequence: SequenceState, other: SequenceState) -> bool:
        """Whether the sequence, attached, could be given most of the rest once `other` has computed its tokens."""
        if self._cache is None or sequence.request.cache_salt != other.request.cache_salt or not _may_share(sequence):
            return False
        num_common = common_length(sequence.tokens.view()[:-1], other.tokens.view())
        gain = num_common - sequence.num_computed
        most = max(_MIN_AWAITED_TOKENS, sequence.num_uncomputed / 2)
        return num_common > other.num_computed and gain >= min(_MIN_SHARED_TOKENS, most)

    def publish(self, sequence: SequenceState) -> None:
        """Enters what the sequence has computed of its committed tokens; others that have the same share it now."""
        if self._cache is None or sequence.prefix is None:
            return
        start = sequence.prefix.num_tokens
        # A stop condition inside the accepted run leaves nodes computed that were not committed.
        end = min(sequence.num_computed, sequence.num_tokens)
        if end <= start:
            return
        own = sequence.context_slots.view()[start:end]
        known = self._cache.extend(sequence.prefix, sequence.tokens.view()[:end], own)
        if start == sequence.num_doubled and not _is_worth_sharing(start + len(known), sequence):
            sequence.num_doubled += len(known)
        else:
            self._allocator.free(own[: len(known)])
            sequence.context_slots.overwrite(start, known)

    def share_all(self, sequence: SequenceState) -> None:
        """Frees the slots of tokens that the cache has too, and reads the cache's: room goes before speed."""
        if sequence.prefix is not None and (count := sequence.num_doubled):
            self._allocator.free(sequence.context_slots.view()[:count])
            sequence.context_slots.overwrite(0, sequence.prefix.slots()[:count])
            sequence.num_doubled = 0

    def release(self, sequence: SequenceState) -> None:
        """Publishes the sequence's context and takes it away."""
        self.publish(sequence)
        self.share_all(sequence)
        num_cached = 0
        if self._cache is not None and sequence.prefix is not None:
            num_cached = sequence.prefix.num_tokens
            self._cache.release(sequence.prefix)
            sequence.prefix = None
        self._allocator.free(sequence.context_slots.view(num_cached))
        sequence.context_slots.clear()
        if sequence.region is not None:
            self._allocator.close_region(sequence.region)
            sequence.region = None

    def _region_of(self, sequence: SequenceState, count: int) -> Region:
        """Room for what it will compute, close behind what it shares if that is possible."""
        size = max(count, sequence.num_uncomputed + min(sequence.num_remaining, self.num_slots // _MAX_GROWTH_SHARE))
        near = int(sequence.context_slots.view().max()) + 1 if sequence.num_computed else None
        region = self._allocator.open_region(size, near=near)
        # What would be evicted for it sooner or later leaves longer runs if it goes at once. Texts that were written
        # one after another lie so, and are evicted so.
        most = self._allocator.num_free + 2 * size
        while region.size < size and self._num_evictable and self._allocator.num_free < most:
            assert self._cache is not None
            self._cache.evict(1, at_once=size)
            self._allocator.close_region(region)
            region = self._allocator.open_region(size, near=near)
        return region

    def check_integrity(self, sequences: Iterable[SequenceState]) -> None:
        """Raises RuntimeError unless each slot is free, one sequence's own or cached, and each pin a sequence's."""
        self._allocator.check_integrity()
        own = cached = pins = 0
        for sequence in sequences:
            num_shared = 0
            if sequence.prefix is not None:
                pins += 1
                shared = sequence.prefix.slots()[sequence.num_doubled :]
                num_shared = len(shared)
                context = sequence.context_slots.view()[sequence.num_doubled :][:num_shared]
                if len(context) != num_shared or (context != shared).any():
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


def _may_share(sequence: SequenceState) -> bool:
    """Prompt tokens that are to be scored have to be computed."""
    return sequence.sampling.prompt_logprobs is None


def _is_worth_sharing(num_shared: int, sequence: SequenceState) -> bool:
    return num_shared >= min(_MIN_SHARED_TOKENS, sequence.num_tokens / 2)
