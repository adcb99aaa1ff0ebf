"""Incremental detokenisation, piece by piece."""

import pytest
from fakes import FakeTokenizer

from goose_ray.engine.detokenizer import Detokenizer

SPECIAL = 0


def pieces(tokens: list[int], tokenizer: FakeTokenizer) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.feed([token]) for token in tokens), detokenizer.flush()]


def test_ascii_comes_at_once() -> None:
    assert pieces(list(b"abc"), FakeTokenizer()) == ["a", "b", "c", ""]


def test_a_character_comes_with_its_last_byte() -> None:
    assert pieces(list("aé€😀".encode()), FakeTokenizer()) == ["a", "", "é", "", "", "€", "", "", "", "😀", ""]


def test_whole_characters_do_not_wait_for_the_rest_of_their_token() -> None:
    # One token with two characters and the first byte of a third.
    tokenizer = FakeTokenizer(["你好".encode() + b"\xe5", b"\x90\x97"])
    assert pieces([256, 257], tokenizer) == ["你好", "吗", ""]


def test_an_incomplete_character_is_flushed_as_decode_gives_it() -> None:
    tokenizer = FakeTokenizer()
    tokens = list(b"a\xe4\xbd")
    assert pieces(tokens, tokenizer) == ["a", "", "", "\ufffd"]
    assert "".join(pieces(tokens, tokenizer)) == tokenizer.decode(tokens)


def test_invalid_bytes_come_when_what_follows_shows_them_invalid() -> None:
    assert pieces(list(b"\x80\xe4b"), FakeTokenizer()) == ["", "", "\ufffd\ufffdb", ""]


def test_special_tokens_have_no_text() -> None:
    assert pieces([97, SPECIAL, 98, SPECIAL], FakeTokenizer(specials=(SPECIAL,))) == ["a", "", "b", "", ""]


def test_a_leading_space_is_lost_once_only() -> None:
    # Tokenizers with a word-start mark strip the first space of whatever they decode.
    tokenizer = FakeTokenizer([" hello", " world"], strips_space=True)
    tokens = [256, 257] * 40
    assert "".join(pieces(tokens, tokenizer)) == tokenizer.decode(tokens)
    assert pieces([256, 257], tokenizer) == ["hello", " world", ""]


@pytest.mark.parametrize("length", range(14, 20))
def test_a_space_is_kept_where_the_window_begins_anew(length: int) -> None:
    # Alone, the space would have no text for such a tokenizer.
    tokens = [97] * length + [32, 97, 32, 97]
    assert "".join(pieces(tokens, FakeTokenizer(strips_space=True))) == "a" * length + " a a"


def test_a_burst_gives_what_single_tokens_give() -> None:
    detokenizer = Detokenizer(FakeTokenizer())
    assert detokenizer.feed(list("né€".encode())[:-1]) == "né"
    assert detokenizer.feed(list("€".encode())[-1:]) == "€"


def test_special_tokens_inside_a_character_at_the_end_of_a_long_run_of_bytes_do_not_break_it() -> None:
    tokenizer = FakeTokenizer(specials=(SPECIAL,))
    first, *others = "\N{GRINNING FACE}".encode()
    tokens = [0x80] * 61 + [first, SPECIAL, SPECIAL, SPECIAL, *others]
    assert "".join(pieces(tokens, tokenizer)) == tokenizer.decode(tokens) == "\ufffd" * 61 + "\N{GRINNING FACE}"


def test_nothing_fed_is_nothing_said() -> None:
    detokenizer = Detokenizer(FakeTokenizer())
    assert detokenizer.feed([]) == ""
    assert detokenizer.flush() == ""


@pytest.mark.parametrize(
    "tokens",
    [
        pytest.param(list("Grüße, 你好 😀. ".encode()) * 100, id="text"),
        pytest.param([SPECIAL] * 2000, id="special tokens"),
        pytest.param([97, 98, *[SPECIAL] * 2000], id="text, then special tokens"),
        pytest.param([0x80] * 2000, id="continuation bytes"),
        pytest.param([0xF0] * 2000, id="first bytes"),
        pytest.param([0xE4, 0xBD] * 1000, id="characters without an end"),
    ],
)
def test_the_work_for_a_token_does_not_grow(tokens: list[int]) -> None:
    tokenizer = FakeTokenizer(specials=(SPECIAL,))
    text = "".join(pieces(tokens, tokenizer))
    # All decoding of a quadratic method would be a thousand times the number of tokens.
    assert tokenizer.num_decoded < 80 * len(tokens)
    assert text == tokenizer.decode(tokens)
