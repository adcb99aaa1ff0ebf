"""Text of any tokens in any steps: the same as of all tokens at once, and cut where the stop strings say."""

from collections.abc import Sequence

from fakes import FakeTokenizer
from hypothesis import given
from hypothesis import strategies as st

from goose_ray.engine.delivery import OutputStream
from goose_ray.engine.detokenizer import Detokenizer
from goose_ray.engine.sampling_params import SamplingParams

SPECIAL, EOS = 0, 1
PIECES: list[str | bytes] = [
    "a",
    "b",
    "ab",
    " a",
    "ba ",
    "é",
    "你好",
    "€".encode()[:2],
    "€".encode()[1:],
    b"\xf0\x9f",
    b"\x98\x80a",
    " ",
]
TEXTS = ["a", "ab", "aba", " a", "b a", "é", "€", "好a", "😀", "bb", "\ufffd"]

bytes_of_text = st.text(alphabet="aé€😀 ", max_size=12).map(lambda text: list(text.encode()))
any_bytes = st.lists(st.sampled_from([97, 32, 0x80, 0xBD, 0xC3, 0xE4, 0xF0, 0xFF]), max_size=90)
pieces = st.lists(st.integers(256, 255 + len(PIECES)), max_size=12)
specials = st.lists(st.just(SPECIAL), max_size=25)
tokens = st.lists(st.one_of(bytes_of_text, any_bytes, pieces, specials), max_size=6).map(
    lambda parts: [token for part in parts for token in part]
)


@st.composite
def steps(draw: st.DrawFn, of: st.SearchStrategy[list[int]] = tokens) -> list[list[int]]:
    """The tokens as they come: one to eight a step."""
    remaining, result = draw(of), []
    while remaining:
        size = draw(st.integers(1, 8))
        result.append(remaining[:size])
        remaining = remaining[size:]
    return result


@given(steps=steps(), strips_space=st.booleans())
def test_the_pieces_are_the_text(steps: list[list[int]], strips_space: bool) -> None:
    tokenizer = FakeTokenizer(PIECES, specials=(SPECIAL,), strips_space=strips_space)
    detokenizer = Detokenizer(tokenizer)
    text = "".join(detokenizer.feed(step) for step in steps) + detokenizer.flush()
    assert text == tokenizer.decode([token for step in steps for token in step])


@given(steps=steps(st.lists(bytes_of_text, max_size=10).map(lambda parts: [t for part in parts for t in part])))
def test_text_is_never_cut_inside_a_character(steps: list[list[int]]) -> None:
    detokenizer = Detokenizer(FakeTokenizer())
    assert not any("\ufffd" in detokenizer.feed(step) for step in steps)
    assert detokenizer.flush() == ""


def deliver(steps: Sequence[Sequence[int]], tokenizer: FakeTokenizer, sampling: SamplingParams) -> tuple[object, ...]:
    """All that is delivered, and how many tokens of the steps stay in the output."""
    output = OutputStream(tokenizer, sampling, (EOS,))
    text, ids, committed = "", list[int](), 0
    for step in steps:
        delivery = output.push(step)
        text += delivery.text
        ids += delivery.token_ids
        committed += delivery.num_committed - delivery.num_withdrawn
        if delivery.finish_reason:
            return text, ids, delivery.finish_reason, delivery.stop_reason, committed
    return text, ids, None, None, committed


@given(
    steps=steps(
        st.lists(
            st.one_of(st.sampled_from([97, 98, 32, SPECIAL, EOS, 7]), pieces.map(lambda p: p[0] if p else 97)),
            max_size=40,
        )
    ),
    stop=st.lists(st.sampled_from(TEXTS), max_size=3, unique=True).map(tuple),
    max_tokens=st.integers(1, 45),
)
def test_a_cut_does_not_depend_on_the_steps(steps: list[list[int]], stop: tuple[str, ...], max_tokens: int) -> None:
    tokenizer = FakeTokenizer(PIECES, specials=(SPECIAL, EOS))
    sampling = SamplingParams(max_tokens=max_tokens, stop=stop, stop_token_ids=(7,))
    flat = [token for step in steps for token in step]
    text, ids, reason, stop_reason, committed = deliver(steps, tokenizer, sampling)
    singly = deliver([[token] for token in flat], tokenizer, sampling)
    assert isinstance(ids, list)
    assert isinstance(text, str)
    if reason is None:
        # What is held back at the end depends on nothing but the tokens, yet it is not the output's end.
        assert flat[: len(ids)] == ids
        assert singly[2] is None
        return
    assert (text, ids, reason, stop_reason, committed) == singly
    assert committed == len(ids)
    assert flat[: len(ids)] == ids
    assert not any(s in text for s in stop)
    if isinstance(stop_reason, str):
        # The fewest ids that give the text.
        assert tokenizer.decode(ids).startswith(text) or "\ufffd" in tokenizer.decode(ids)
        assert not ids or len(tokenizer.decode(ids[:-1])) < len(text) or "\ufffd" in tokenizer.decode(ids[:-1])
    else:
        ended = ids[-1] in (EOS, 7)
        assert ended == (reason == "stop")
        assert len(ids) == max_tokens or ended
        assert text == tokenizer.decode(ids[:-1] if ended else ids)
