"""OutputStream: text and token ids are cut at the same place, whatever the steps."""

import pytest
from fakes import EOS, FakeTokenizer

from goose_ray.engine.delivery import Delivery, OutputStream
from goose_ray.engine.sampling_params import SamplingParams

# Pieces 256, 257, ... of the tokenizer.
TOKENIZER = FakeTokenizer([" ha", "ha", "xE", "ND", "o EN", "D y"], specials=(EOS,))
HA, HA_, XE, ND, OEN, DY = range(256, 262)


def stream(
    *stop: str,
    max_tokens: int = 100,
    stop_token_ids: tuple[int, ...] = (),
    min_tokens: int = 0,
    include_stop: bool = False,
) -> OutputStream:
    sampling = SamplingParams(
        max_tokens=max_tokens,
        stop=stop,
        stop_token_ids=stop_token_ids,
        min_tokens=min_tokens,
        include_stop_str_in_output=include_stop,
    )
    return OutputStream(TOKENIZER, sampling, (EOS,))


def test_without_stop_strings_every_token_is_delivered_at_once() -> None:
    output = stream()
    assert output.push([97, 98]) == Delivery("ab", (97, 98), None, None, 2)
    # The first byte of a character: the id goes out, its text waits.
    assert output.push([0xC3]) == Delivery("", (0xC3,), None, None, 1)
    assert output.push([0xA9, EOS, 99]) == Delivery("é", (0xA9, EOS), "stop", None, 2)


def test_what_waits_is_flushed_at_the_end() -> None:
    assert stream(max_tokens=2).push([97, 0xC3, 98]) == Delivery("a\ufffd", (97, 0xC3), "length", None, 2)


def test_b5_a_stop_string_before_eos_in_one_step_wins_and_is_trimmed() -> None:
    # sglang 28802
    assert stream("END").push([97, XE, ND, EOS, 98]) == Delivery("ax", (97, XE), "stop", "END", 2)


def test_b5_eos_before_a_stop_string_in_one_step_wins() -> None:
    assert stream("END").push([97, EOS, XE, ND]) == Delivery("a", (97, EOS), "stop", None, 2)


def test_b6_ids_do_not_run_on_behind_the_cut_text() -> None:
    # vllm 47616: stop=[" ha ha ha"], one step
    assert stream(" ha ha ha").push([97, HA, HA, HA, 98]) == Delivery("a", (97,), "stop", " ha ha ha", 1)


def test_b6_over_several_steps_ids_are_held_back_with_their_text() -> None:
    output = stream(" ha ha ha")
    assert output.push([97, HA]) == Delivery("a", (97,), None, None, 2)
    assert output.push([HA]) == Delivery("", (), None, None, 1)
    assert output.push([HA, 98]) == Delivery("", (), "stop", " ha ha ha", 0, num_withdrawn=2)


def test_text_held_back_in_vain_is_delivered() -> None:
    output = stream(" ha ha ha")
    output.push([97, HA, HA])
    assert output.push([98]) == Delivery(" ha hab", (HA, HA, 98), None, None, 1)


def test_a_later_beginning_stays_held_back() -> None:
    output = stream("aab")
    assert output.push(list(b"aa")) == Delivery("", (), None, None, 2)
    assert output.push(list(b"a")) == Delivery("a", (97,), None, None, 1)
    assert output.push(list(b"b")) == Delivery("", (), "stop", "aab", 0, num_withdrawn=2)


def test_held_text_is_flushed_when_the_output_ends_otherwise() -> None:
    output = stream("END", max_tokens=3)
    assert output.push([97, XE]) == Delivery("ax", (97, XE), None, None, 2)
    assert output.push([98]) == Delivery("Eb", (98,), "length", None, 1)
    output = stream("END")
    output.push([97, 69])
    assert output.push([EOS]) == Delivery("E", (69, EOS), "stop", None, 1)


def test_a_token_is_delivered_with_the_first_character_of_its_text() -> None:
    # "o EN" + "D y": the stop string begins inside the first token and ends inside the second.
    output = stream("END")
    assert output.push([OEN]) == Delivery("o ", (OEN,), None, None, 1)
    assert output.push([DY]) == Delivery("", (), "stop", "END", 0)
    assert stream("END").push([OEN, DY]) == Delivery("o ", (OEN,), "stop", "END", 1)


def test_a_token_delivered_in_part_is_not_delivered_again() -> None:
    output = stream("END", "Ny")
    output.push([OEN])
    assert output.push([120]) == Delivery("ENx", (120,), None, None, 1)
    output = stream("END", "EN")
    assert output.push([OEN]) == Delivery("o ", (OEN,), "stop", "EN", 1)
    # "E" of the delivered token stays text after all; "N!" is cut behind it
    output = stream("EX", "!")
    assert output.push([XE]) == Delivery("x", (XE,), None, None, 1)
    assert output.push([33]) == Delivery("E", (), "stop", "!", 0)


def test_a_stop_string_on_the_limit_is_a_stop() -> None:
    assert stream("END", max_tokens=3).push([97, XE, ND]) == Delivery("ax", (97, XE), "stop", "END", 2)


def test_a_stop_token_on_the_limit_is_a_stop() -> None:
    delivery = stream("END", max_tokens=2, stop_token_ids=(98,)).push([97, 98, 99])
    assert delivery == Delivery("a", (97, 98), "stop", 98, 2)


def test_a_stop_string_at_the_very_beginning_leaves_nothing() -> None:
    assert stream("a").push([97, 98]) == Delivery("", (), "stop", "a", 0)


@pytest.mark.parametrize("split", range(1, 8))
def test_a_stop_string_of_wide_characters_over_any_two_steps(split: int) -> None:
    tokens = list("x你好y".encode())
    output = stream("你好")
    first, second = output.push(tokens[:split]), output.push(tokens[split:]) if split < 7 else None
    deliveries = [delivery for delivery in (first, second) if delivery is not None]
    assert "".join(delivery.text for delivery in deliveries) == "x"
    assert [token for delivery in deliveries for token in delivery.token_ids] == [120]
    assert deliveries[-1].stop_reason == "你好"


def test_the_text_behind_a_stop_token_is_not_searched() -> None:
    # The stop token's own text would complete the stop string.
    assert stream("ab", stop_token_ids=(98,)).push([97, 98]) == Delivery("a", (97, 98), "stop", 98, 2)


def whole(output: OutputStream, steps: list[list[int]]) -> tuple[str, list[int], str | None, str | int | None]:
    """All that the steps came to, up to the end."""
    text, ids = "", list[int]()
    for step in steps:
        delivery = output.push(step)
        text, ids = text + delivery.text, [*ids, *delivery.token_ids]
        if delivery.finish_reason:
            break
    return text, ids, delivery.finish_reason, delivery.stop_reason


@pytest.mark.parametrize("split", range(1, 6))
@pytest.mark.parametrize(
    ("min_tokens", "text", "num_ids"),
    # The stop string is complete with the third token, and once more with the fifth.
    [(0, "ax", 2), (2, "ax", 2), (3, "axENDo ", 4), (4, "axENDo ", 4), (5, "axENDo END yb", 6)],
)
def test_a_stop_string_complete_within_min_tokens_is_text(min_tokens: int, text: str, num_ids: int, split: int) -> None:
    tokens = [97, XE, ND, OEN, DY, 98]
    found = whole(stream("END", min_tokens=min_tokens), [tokens[:split], tokens[split:], [69], [ND, 98]])
    assert found == (text, tokens[:num_ids], "stop", "END")


@pytest.mark.parametrize("split", range(1, 6))
def test_a_stop_string_across_the_end_of_min_tokens_counts(split: int) -> None:
    tokens = [97, 98, XE, ND, 99, 100]
    assert whole(stream("bxEND", min_tokens=3), [tokens[:split], tokens[split:]]) == ("a", [97], "stop", "bxEND")


@pytest.mark.parametrize("split", range(1, 5))
def test_a_stop_string_may_be_included(split: int) -> None:
    """Up to its last character: what the last token goes on to say is not."""
    tokens = [97, 120, OEN, DY, 98]
    found = whole(stream("o END", include_stop=True), [tokens[:split], tokens[split:]])
    assert found == ("axo END", [97, 120, OEN, DY], "stop", "o END")


def test_the_text_of_a_stop_token_may_be_included() -> None:
    included = {"include_stop": True, "stop_token_ids": (HA,)}
    assert stream(**included).push([97, HA, 98]) == Delivery("a ha", (97, HA), "stop", HA, 2)  # type: ignore[arg-type]
    assert stream("x", **included).push([97, HA]) == Delivery("a ha", (97, HA), "stop", HA, 2)  # type: ignore[arg-type]
    # a special token has none
    assert stream(include_stop=True).push([97, EOS]) == Delivery("a", (97, EOS), "stop", None, 2)
    # its text may complete a stop string
    assert stream("a ha", **included).push([97, HA]) == Delivery("a ha", (97, HA), "stop", "a ha", 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", [[[97, 0xC3, 98]], [[97], [0xC3], [98]], [[97, 0xC3], [EOS]]])
def test_a_stop_string_in_what_is_flushed_at_the_end(steps: list[list[int]]) -> None:
    """Bytes that no token completed are U+FFFD, which is text like any other."""
    output = stream("\ufffd", max_tokens=2)
    deliveries = []
    for step in steps:
        deliveries.append(output.push(step))
        if deliveries[-1].finish_reason:
            break
    assert "".join(delivery.text for delivery in deliveries) == "a"
    assert [token for delivery in deliveries for token in delivery.token_ids] == [97]
    assert (deliveries[-1].finish_reason, deliveries[-1].stop_reason) == ("stop", "\ufffd")
    assert sum(delivery.num_committed - delivery.num_withdrawn for delivery in deliveries) == 1


def test_what_is_flushed_within_the_fewest_tokens_ends_nothing() -> None:
    output = stream("\ufffd", max_tokens=2, min_tokens=2)
    assert output.push([97, 0xC3]) == Delivery("a\ufffd", (97, 0xC3), "length", None, 2)
