"""PrefixCache: what is found again, what goes first, what stays."""

import numpy as np
import pytest

from goose.tree import IntArray
from goose_ray.engine.kv_cache import SlotAllocator
from goose_ray.engine.prefix_cache import Pin, PrefixCache


class Shelf:
    """A cache of texts, a letter a token."""

    def __init__(self, num_slots: int = 64) -> None:
        self.allocator = SlotAllocator(num_slots)
        self.cache = PrefixCache(self.allocator)

    def pin(self, text: str, salt: str | None = None) -> Pin:
        return self.cache.pin(letters(text), salt)

    def enter(self, text: str, salt: str | None = None) -> Pin:
        pin = self.pin(text, salt)
        self.cache.extend(pin, letters(text), self.allocator.allocate(len(text) - pin.num_tokens))
        return pin

    def leave(self, text: str, salt: str | None = None) -> None:
        self.cache.release(self.enter(text, salt))

    def known(self, text: str, salt: str | None = None) -> str:
        """The part of it that is cached. To ask is to use it."""
        pin = self.pin(text, salt)
        length = pin.num_tokens
        self.cache.release(pin)
        return text[:length]


def letters(text: str) -> IntArray:
    return np.array([ord(letter) for letter in text], dtype=np.int64)


def test_the_longest_common_prefix_is_found_in_its_slots() -> None:
    shelf = Shelf()
    first = shelf.enter("the quick fox")
    second = shelf.pin("the quiet fox")
    assert second.num_tokens == len("the qui")
    assert second.slots().tolist() == first.slots().tolist()[:7]
    # The first pin holds what it held, though its run was cut in two.
    assert first.num_tokens == 13
    assert first.slots().tolist() == list(range(13))


def test_what_is_known_already_stays_the_callers() -> None:
    shelf = Shelf()
    early, late = shelf.pin("abcd"), shelf.pin("abxy")
    shelf.cache.extend(early, letters("abcd"), shelf.allocator.allocate(4))
    own = shelf.allocator.allocate(4)
    known = shelf.cache.extend(late, letters("abxy"), own)
    assert known.tolist() == early.slots().tolist()[:2]
    assert late.slots().tolist() == [*known.tolist(), *own.tolist()[2:]]
    assert (shelf.cache.num_cached, shelf.allocator.num_used) == (6, 8)
    shelf.allocator.free(own[:2])


def test_salts_never_meet() -> None:
    shelf = Shelf()
    shelf.leave("secret", "a")
    assert shelf.known("secret", "a") == "secret"
    assert shelf.known("secret", "b") == ""
    assert shelf.known("secret") == ""


def test_the_least_recently_used_goes_first_and_from_its_end() -> None:
    shelf = Shelf()
    for text in ("old one", "new one", "middle"):
        shelf.leave(text)
    assert shelf.known("old one") == "old one"
    shelf.cache.evict(4)
    assert shelf.cache.num_cached == 16
    # Asked for in order of eviction, for each question renews what it finds.
    shelf.cache.check_integrity()
    assert [shelf.known(text) for text in ("new one", "middle", "old one")] == ["new", "middle", "old one"]


def test_what_continues_a_prefix_goes_before_it() -> None:
    shelf = Shelf()
    for text in ("system prompt a", "system prompt b"):
        shelf.leave(text)
    shelf.cache.evict(2)
    assert shelf.known("system prompt a") == "system prompt "
    shelf.cache.evict(14)
    assert (shelf.cache.num_cached, shelf.allocator.num_used) == (0, 0)
    assert not shelf.cache._roots


def test_nothing_pinned_is_evicted() -> None:
    shelf = Shelf()
    shelf.leave("shared and more")
    pin = shelf.pin("shared")
    assert (shelf.cache.num_cached, shelf.cache.num_evictable) == (15, 9)
    with pytest.raises(RuntimeError, match="10 cached KV slots are to be evicted, 9 may be"):
        shelf.cache.evict(10)
    shelf.cache.evict(9)
    assert shelf.known("shared and more") == "shared"
    shelf.cache.release(pin)
    assert shelf.cache.num_evictable == 6


def test_a_prompt_in_chunks_is_one_run() -> None:
    shelf = Shelf()
    pin = shelf.pin("abcdefgh")
    for end in (3, 6, 8):
        shelf.cache.extend(pin, letters("abcdefgh"[:end]), shelf.allocator.allocate(end - pin.num_tokens))
    (root,) = shelf.cache._roots.values()
    (node,) = root.children.values()
    assert (node.end, node.children) == (8, {})


def test_a_pin_is_released_once() -> None:
    shelf = Shelf()
    pin = shelf.enter("abc")
    shelf.cache.release(pin)
    for verb in (lambda: shelf.cache.release(pin), pin.slots, lambda: pin.num_tokens):
        with pytest.raises(ValueError, match="no longer pinned"):
            verb()


def test_the_slots_must_be_those_of_the_tokens_behind_the_prefix() -> None:
    shelf = Shelf()
    pin = shelf.enter("abc")
    with pytest.raises(ValueError, match="1 slots for 2 tokens"):
        shelf.cache.extend(pin, letters("abcde"), shelf.allocator.allocate(1))
    assert shelf.cache.num_cached == 3


def test_many_salts_leave_nothing_behind() -> None:
    shelf = Shelf()
    for number in range(200):
        shelf.cache.evict(max(0, 40 - shelf.allocator.num_free))
        shelf.leave("some text", f"salt {number}")
        assert shelf.known("other", f"salt {number}") == ""
    shelf.cache.check_integrity()
    assert len(shelf.cache._roots) <= 8
    assert len(shelf.cache._queue) <= 8
