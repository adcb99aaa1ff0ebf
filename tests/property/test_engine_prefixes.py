"""Prefix cache over the allocator as a state machine, against a model that is a dictionary of prefixes.

`GOOSE_CACHE_STEPS` (see `make slots`) sets how many operations the long run makes.
"""

import os
from random import Random

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from goose.tree import IntArray
from goose_ray.engine.kv_cache import SlotAllocator
from goose_ray.engine.prefix_cache import Pin, PrefixCache

NUM_SLOTS = 40
# Few tokens, so that texts meet, split and part again.
ALPHABET = 3


class World:
    """Allocator and cache, with what is written to each slot: the prefix that ends there, and its salt."""

    def __init__(self, num_slots: int = NUM_SLOTS) -> None:
        self.allocator = SlotAllocator(num_slots)
        self.cache = PrefixCache(self.allocator)
        self.num_hits = 0
        self.written: dict[int, tuple[str | None, tuple[int, ...]]] = {}
        # pin, the text of its sequence, slots of its own behind the prefix
        self.users: list[tuple[Pin, str | None, list[int], list[int]]] = []

    @property
    def num_available(self) -> int:
        return self.allocator.num_free + self.cache.num_evictable

    def allocate(self, count: int) -> IntArray:
        before = self.cache.num_cached
        missing = max(0, count - self.allocator.num_free)
        self.cache.evict(missing)
        assert self.cache.num_cached == before - missing, "more was evicted than was needed"
        return self.allocator.allocate(count)

    def arrive(self, text: list[int], salt: str | None) -> None:
        """Begins a text by what is cached of it, and computes the rest as far as there is room."""
        pin = self.cache.pin(np.array(text), salt)
        self.num_hits += pin.num_tokens
        self.users.append((pin, salt, text[: pin.num_tokens], []))
        self.compute(len(self.users) - 1, text[pin.num_tokens :], 0)

    def compute(self, user: int, tokens: list[int], num_rejected: int) -> None:
        """A step: slots for tokens that are committed and for drafts that are not."""
        _, salt, text, own = self.users[user]
        tokens = tokens[: max(0, self.num_available - num_rejected)]
        num_rejected = min(num_rejected, self.num_available - len(tokens))
        slots = self.allocate(len(tokens) + num_rejected)
        self.check_slots_are_new(slots)
        for slot, token in zip(slots.tolist(), tokens, strict=False):
            text.append(token)
            own.append(slot)
            self.written[slot] = (salt, tuple(text))
        for slot in slots[len(tokens) :].tolist():
            self.written[slot] = (salt, (*text, -1))
        self.allocator.free(slots[len(tokens) :])

    def check_slots_are_new(self, slots: IntArray) -> None:
        in_use = [slot for pin, _, _, own in self.users for slot in (*pin.slots().tolist(), *own)]
        assert not set(slots.tolist()) & set(in_use), "a slot in use was handed out"

    def publish(self, user: int) -> None:
        pin, salt, text, own = self.users[user]
        if own:
            known = self.cache.extend(pin, np.array(text), np.array(own))
            assert pin.num_tokens == len(text)
            assert [self.written[slot] for slot in known.tolist()] == [self.written[slot] for slot in own[: len(known)]]
            self.allocator.free(np.array(own[: len(known)], dtype=np.int64))
            own.clear()
        for other, num_known in ((salt, len(text)), ("another", 0)):
            probe = self.cache.pin(np.array([*text, ALPHABET]), other)
            assert probe.num_tokens == num_known
            self.cache.release(probe)

    def leave(self, user: int, *, publish: bool) -> None:
        if publish:
            self.publish(user)
        pin, _, _, own = self.users.pop(user)
        self.cache.release(pin)
        self.allocator.free(np.array(own, dtype=np.int64))

    def check(self) -> None:
        self.allocator.check_integrity()
        self.cache.check_integrity()
        assert self.cache.num_pins == len(self.users)
        num_own, pinned = 0, set[int]()
        owned = list[int]()
        for pin, salt, text, own in self.users:
            context = [*pin.slots().tolist(), *own]
            assert [self.written[slot] for slot in context] == [
                (salt, tuple(text[: length + 1])) for length in range(len(text))
            ], "a context is not the sequence's own text"
            num_own += len(own)
            owned += own
            pinned |= set(pin.slots().tolist())
        assert len(set(owned)) == len(owned)
        assert not set(owned) & pinned
        assert self.cache.num_cached - self.cache.num_evictable == len(pinned)
        assert self.allocator.num_used == num_own + self.cache.num_cached


texts = st.lists(st.integers(0, ALPHABET - 1), max_size=14)
salts = st.sampled_from([None, None, "a"])


class CacheMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @rule(text=texts, salt=salts)
    def arrive(self, text: list[int], salt: str | None) -> None:
        self.world.arrive(text, salt)

    @precondition(lambda self: self.world.users)
    @rule(data=st.data(), tokens=texts, num_rejected=st.integers(0, 6))
    def compute(self, data: st.DataObject, tokens: list[int], num_rejected: int) -> None:
        self.world.compute(self._user(data), tokens, num_rejected)

    @precondition(lambda self: self.world.users)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        self.world.publish(self._user(data))

    @precondition(lambda self: self.world.users)
    @rule(data=st.data(), publish=st.booleans())
    def leave(self, data: st.DataObject, publish: bool) -> None:
        self.world.leave(self._user(data), publish=publish)

    @invariant()
    def nothing_leaks_and_nothing_is_shared_that_differs(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        while self.world.users:
            self.world.leave(0, publish=True)
        assert self.world.num_available == NUM_SLOTS
        self.world.cache.evict(self.world.cache.num_evictable)
        self.world.check()
        assert self.world.allocator.num_free == NUM_SLOTS

    def _user(self, data: st.DataObject) -> int:
        number: int = data.draw(st.integers(0, len(self.world.users) - 1))
        return number


CacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPrefixCache = CacheMachine.TestCase


def test_a_long_life_leaks_nothing() -> None:
    """Random operations on one pool, which is full nearly all the time."""
    num_operations = int(os.environ.get("GOOSE_CACHE_STEPS", "3000"))
    random, world = Random(7), World(num_slots=160)
    for operation in range(num_operations):
        choice = random.random()
        if (choice < 0.2 and len(world.users) < 8) or not world.users:
            # Texts that begin alike, as with a system prompt, and go on by chance.
            text = [2, 1] * random.randint(0, 6) + [random.randrange(ALPHABET) for _ in range(random.randint(0, 20))]
            world.arrive(text, random.choice([None, "a", f"rare {random.randrange(50)}"]))
        elif choice < 0.7:
            tokens = [random.randrange(ALPHABET) for _ in range(random.randint(0, 8))]
            world.compute(random.randrange(len(world.users)), tokens, random.randint(0, 12))
        elif choice < 0.8:
            world.publish(random.randrange(len(world.users)))
        else:
            world.leave(random.randrange(len(world.users)), publish=random.random() < 0.8)
        if operation % 10 == 0:
            world.check()
    while world.users:
        world.leave(0, publish=True)
    assert world.num_hits > num_operations / 2
    world.cache.evict(world.cache.num_evictable)
    world.check()
    assert world.allocator.num_free == world.allocator.num_slots
    assert not world.cache._roots
    assert not world.cache._queue
