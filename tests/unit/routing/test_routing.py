"""Which replica a prompt should go to: keys of prompts, and the choice among replicas."""

from random import Random
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goose_ray.api.calls import ChatPrompt, GenerateCall
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.routing.prefix_affinity import PrefixAffinity
from goose_ray.routing.prompt_key import BLOCK_BYTES, PromptKey, prompt_key

SYSTEM = {"role": "system", "content": "You are a helpful assistant of few words. " * 20}
NAMES = st.sets(st.text("abcdef0123456789", min_size=4, max_size=8), min_size=2, max_size=9)
HEADS = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=40, unique=True)


def key_of(prompt: ChatPrompt | str | tuple[int, ...], salt: str | None = None) -> PromptKey:
    return prompt_key(
        GenerateCall(request_id="r", prompt=prompt, sampling=SamplingParams(), clip_max_tokens=True, cache_salt=salt)
    )


def chat(*texts: str) -> ChatPrompt:
    """Of a user and an assistant in turn."""
    turns = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    return ChatPrompt((SYSTEM, *turns))


def affinity_of(*names: str, blocks: int = 1000, seed: int = 0) -> PrefixAffinity:
    affinity = PrefixAffinity(blocks_per_replica=blocks, rng=Random(seed))
    affinity.set_replicas(names)
    return affinity


def best(affinity: PrefixAffinity, key: PromptKey, avoid: str | None = None, **loads: int) -> str:
    known = affinity.candidates(key)
    return affinity.ranked(key, known, {name: loads.get(name, 0) for name in known}, avoid=avoid)[0]


def long_key(head: int, length: int = 50) -> PromptKey:
    return PromptKey(tuple(range(head * 1000, head * 1000 + length)), head)


def test_the_next_turn_begins_with_the_blocks_of_the_one_before() -> None:
    first, second = key_of(chat("Why? " * 100)), key_of(chat("Why? " * 100, "Because. " * 100, "And then? " * 9))
    assert second.blocks[: len(first.blocks)] == first.blocks
    assert len(second.blocks) > len(first.blocks) > 3
    assert second.head == first.head


@pytest.mark.parametrize(
    "grown", [("a" * 3000, "a" * 3000 + "b"), (tuple(range(900)), tuple(range(1000)))], ids=["text", "token ids"]
)
def test_a_text_that_grows_keeps_its_blocks(grown: tuple[str, str] | tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    shorter, longer = map(key_of, grown)
    assert longer.blocks[: len(shorter.blocks)] == shorter.blocks
    assert len(shorter.blocks) > 5
    assert longer.head == shorter.head


def test_conversations_of_one_system_prompt_share_its_blocks_and_have_heads_of_their_own() -> None:
    one, other = key_of(chat("Hello " * 99)), key_of(chat("Goodbye " * 99))
    shared = len(SYSTEM["content"]) // BLOCK_BYTES
    assert one.blocks[:shared] == other.blocks[:shared]
    assert not set(one.blocks[shared + 1 :]) & set(other.blocks[shared + 1 :])
    assert one.head != other.head


def test_tools_and_salts_make_other_prompts() -> None:
    prompt = chat("Hello " * 99)
    with_tools = ChatPrompt(prompt.messages, tools=({"type": "function", "function": {"name": "f"}},))
    keys = [key_of(prompt), key_of(prompt, "a"), key_of(prompt, "b"), key_of(prompt, "null"), key_of(with_tools)]
    assert len({key.head for key in keys}) == 5
    assert len({block for key in keys for block in key.blocks}) == sum(len(key.blocks) for key in keys)


def test_keys_are_the_same_in_every_process() -> None:
    # hash() of a text is not
    assert key_of("x" * BLOCK_BYTES) == PromptKey((4533057780533002547,), 4533057780533002547)


def test_a_prompt_may_be_anything_that_clients_send() -> None:
    odd = MappingProxyType({"role": "user", "content": "\ud800" + "x" * 999})
    assert len(key_of(ChatPrompt((odd,))).blocks) == len(key_of(ChatPrompt((dict(odd),))).blocks) > 2
    assert key_of("\ud800" * 999).blocks
    assert key_of((10**30,) * 99).blocks
    assert not key_of(ChatPrompt(())).blocks
    assert len(key_of("x" * 10**6).blocks) == 2048


def test_a_conversation_returns_to_its_replica() -> None:
    affinity = affinity_of("a", "b")
    one, other = long_key(1), long_key(2)
    affinity.sent(one, "a")
    affinity.sent(other, "b")
    for _ in range(20):
        assert best(affinity, PromptKey((*one.blocks, 1, 2, 3), 1), a=2) == "a"
        assert best(affinity, PromptKey((*other.blocks, 1, 2, 3), 2), b=2) == "b"


def test_what_is_known_is_worth_some_waiting_and_no_more() -> None:
    affinity = affinity_of("a", "b")
    affinity.sent(long_key(1, 10), "a")
    affinity.sent(long_key(2, 100), "a")
    # four blocks a request, behind a lead of one
    assert [best(affinity, long_key(1, 10), a=load) for load in (3, 4)] == ["a", "b"]
    assert [best(affinity, long_key(2, 100), a=load) for load in (25, 27)] == ["a", "b"]


def test_who_knows_most_is_asked_first_and_then_who_knows_less() -> None:
    affinity = affinity_of("a", "b", "c", "d")
    key = long_key(1)
    affinity.sent(PromptKey(key.blocks[:20], 1), "a")
    affinity.sent(PromptKey(key.blocks[:45], 1), "b")
    affinity.sent(long_key(2), "c")
    known = affinity.candidates(key)
    assert (known["a"], known["b"]) == (20, 45)
    assert affinity.ranked(key, known, dict.fromkeys(known, 0))[:2] == ["b", "a"]


def test_a_prompt_without_a_block_goes_to_the_less_busy_one() -> None:
    affinity = affinity_of("a", "b")
    assert {best(affinity, PromptKey((), head)) for head in range(20)} == {"a", "b"}
    assert {best(affinity, PromptKey((), 1)) for _ in range(40)} == {"a", "b"}
    assert {best(affinity, PromptKey((), head), a=1) for head in range(20)} == {"b"}


def test_what_is_drawn_depends_on_the_seed_alone_in_every_process() -> None:
    names = [f"replica-{number}" for number in range(9)]
    affinity, rng = affinity_of(*reversed(names), seed=5), Random(5)
    for _ in range(20):
        assert list(affinity.candidates(PromptKey())) == rng.sample(names, 2)


def test_who_comes_again_goes_elsewhere_if_there_is_an_elsewhere() -> None:
    affinity = affinity_of("a", "b")
    affinity.sent(long_key(1), "a")
    assert best(affinity, long_key(1), avoid="a", b=30) == "b"
    affinity.set_replicas(["a"])
    assert best(affinity, long_key(1), avoid="a") == "a"


def test_a_replica_that_is_gone_is_forgotten() -> None:
    affinity = affinity_of("a", "b")
    affinity.sent(long_key(1), "a")
    affinity.set_replicas(["b"])
    affinity.sent(long_key(1), "a")
    assert affinity.candidates(long_key(1)) == {"b": 0}
    affinity.set_replicas(["a", "b"])
    assert affinity.candidates(long_key(1)) == {"a": 0, "b": 0}
    affinity.set_replicas([])
    assert affinity.candidates(long_key(1)) == {}


def test_memory_is_bounded_and_ends_go_before_beginnings() -> None:
    affinity = affinity_of("a", "b", blocks=30)
    affinity.sent(long_key(1, 20), "a")
    affinity.sent(long_key(2, 20), "a")
    assert affinity.candidates(long_key(2, 20))["a"] == 20
    assert affinity.candidates(long_key(1, 20))["a"] == 10
    affinity.sent(long_key(3, 99), "a")
    assert affinity.candidates(long_key(3, 99))["a"] == 30
    assert affinity.candidates(long_key(2, 20))["a"] == 0


@given(NAMES, HEADS)
def test_routers_that_never_talk_agree_on_what_is_new_to_them(names: set[str], heads: list[int]) -> None:
    one, other = affinity_of(*sorted(names), seed=1), affinity_of(*sorted(names, reverse=True), seed=2)
    for head in heads:
        key = PromptKey((head,), head)
        assert best(one, key) == best(other, key) == one.home(key)


@given(NAMES, HEADS)
def test_a_replica_that_comes_takes_its_share_and_one_that_goes_gives_it_back(
    names: set[str], heads: list[int]
) -> None:
    *rest, new = sorted(names)
    affinity = affinity_of(*rest)
    keys = [PromptKey((head,), head) for head in heads]
    before = [affinity.home(key) for key in keys]
    affinity.set_replicas(names)
    after = [affinity.home(key) for key in keys]
    assert all(home in (was, new) for was, home in zip(before, after, strict=True))
    affinity.set_replicas(rest)
    assert [affinity.home(key) for key in keys] == before


def test_routers_that_take_turns_meet_at_the_home() -> None:
    one, other = affinity_of("a", "b"), affinity_of("a", "b")
    turns = [PromptKey(long_key(1, 10 * number).blocks, 1, 10 * (number - 1)) for number in range(1, 6)]
    home = one.home(turns[0])
    (elsewhere,) = {"a", "b"} - {home}
    # load sent the first turn elsewhere, and the router that knows keeps to that
    one.sent(turns[0], elsewhere)
    assert best(one, turns[1]) == elsewhere
    # but where turns are missing, somebody else sent them
    assert best(other, turns[1]) == home
    other.sent(turns[1], home)
    assert best(one, turns[2]) == home
    one.sent(turns[2], home)
    assert best(other, turns[3]) == best(one, turns[3]) == home


def test_what_a_conversation_asked_last_is_told_from_what_is_new() -> None:
    first, second = key_of(chat("Why? " * 100)), key_of(chat("Why? " * 100, "Because. " * 100, "And then? " * 9))
    assert (first.past, second.past) == (0, len(first.blocks))
    assert key_of("x" * 999).past == 0


def test_homes_are_spread_evenly() -> None:
    affinity = affinity_of(*"abcd")
    homes = [affinity.home(PromptKey((head,), head * 0x9E3779B97F4A7C15 % 2**64)) for head in range(4000)]
    # binomial, standard deviation 27
    assert all(abs(homes.count(name) - 1000) < 5 * 28 for name in "abcd")


def test_few_replicas_are_weighed_however_many_know_something() -> None:
    names = [f"r{number}" for number in range(500)]
    affinity = affinity_of(*names)
    for name in names:
        affinity.sent(long_key(1, 20), name)
    affinity.sent(long_key(1, 40), "r77")
    known = affinity.candidates(long_key(1, 40))
    assert len(known) <= 7
    assert known["r77"] == 40


@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.integers(1, 8)), max_size=30),
    st.tuples(st.integers(0, 3), st.integers(1, 8)),
)
def test_what_is_known_is_always_a_beginning_that_was_sent(
    blocks: int, sends: list[tuple[str, int, int]], asked: tuple[int, int]
) -> None:
    affinity = affinity_of("a", "b", blocks=blocks)
    for name, head, length in sends:
        affinity.sent(long_key(head, length), name)
    head, length = asked
    for name, known in affinity.candidates(long_key(head, length)).items():
        longest = max((sent for who, of, sent in sends if (who, of) == (name, head)), default=0)
        assert known <= min(longest, length, blocks)
        # the newest is known as far as there is room
        last = next(((of, sent) for who, of, sent in reversed(sends) if who == name), None)
        if last and last[0] == head:
            assert known >= min(last[1], length, blocks)


def test_a_cache_that_is_filled_faster_than_the_others_gets_nothing_new_for_a_while() -> None:
    affinity = affinity_of("a", "b", blocks=500)
    keys = [long_key(head, 40) for head in range(200)]
    of_a = [key for key in keys if affinity.home(key) == "a"]
    assert len(of_a) > 60
    sent = []
    for key in of_a[:60]:
        sent.append(best(affinity, key))
        affinity.sent(key, sent[-1])
    assert 0.4 * len(sent) < sent.count("b") < 0.6 * len(sent)
    # who was sent something stays where it is
    assert [best(affinity, key) for key in of_a[50:60]] == sent[50:60]
