"""What a token can stand for at most, and what is refused for it without being tokenised."""

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from goose_ray.errors import InvalidRequestError
from goose_ray.models.loader import resolve
from goose_ray.models.token_bytes import TokenBytes
from goose_ray.models.token_lengths import longest_token
from goose_ray.models.tokenizer import HFTokenizer, load_tokenizer

# a run of 81 bytes is one token of it
LONGEST = 81


@pytest.fixture(scope="module")
def embedded() -> HFTokenizer:
    return load_tokenizer(resolve("smollm2-135m-instruct"))


def small(**parts: object) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1, "abcdef": 2}, []))
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return tokenizer


def longest_of(tokenizer: Tokenizer) -> int | None:
    return longest_token(tokenizer, TokenBytes(tokenizer))


class TestLongestToken:
    def test_of_a_vocabulary(self) -> None:
        assert longest_of(small()) == 6
        assert longest_of(small(pre_tokenizer=pre_tokenizers.ByteLevel())) == 6

    def test_composed_characters_were_longer(self) -> None:
        assert longest_of(small(normalizer=normalizers.NFC())) == 18
        assert longest_of(small(normalizer=normalizers.Sequence([normalizers.NFC()]))) == 18

    @pytest.mark.parametrize(
        "parts",
        [
            {"normalizer": normalizers.StripAccents()},
            {"normalizer": normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])},
            {"normalizer": normalizers.Replace("aa", "a")},
            {"pre_tokenizer": pre_tokenizers.Whitespace()},
            {"pre_tokenizer": pre_tokenizers.Split(" ", "removed")},
            {"pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.WhitespaceSplit()])},
            {"model": models.BPE({"a": 0, "<unk>": 1}, [], unk_token="<unk>", fuse_unk=True)},
            {"model": models.WordPiece({"a": 0, "[UNK]": 1}, unk_token="[UNK]")},
        ],
    )
    def test_is_not_known_where_text_may_be_dropped(self, parts: dict[str, object]) -> None:
        assert longest_of(small(**parts)) is None

    def test_is_not_known_where_a_special_token_takes_the_spaces_around_it(self) -> None:
        tokenizer = small()
        tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
        assert longest_of(tokenizer) is None


@pytest.mark.parametrize("character", ["a", "é", " ", "\U0001f986"])
def test_text_that_cannot_fit_is_refused(embedded: HFTokenizer, character: str) -> None:
    with pytest.raises(InvalidRequestError, match="maximum context length is 10 tokens") as refused:
        embedded.encode(character * (10 * LONGEST + 1), max_tokens=10)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(InvalidRequestError, match="maximum context length"):
        embedded.apply_chat_template([{"role": "user", "content": character * 10 * LONGEST}], max_tokens=10)


def test_nothing_that_fits_is_refused(embedded: HFTokenizer) -> None:
    """The longest token, as often as the context holds it."""
    token = max(range(embedded.vocab_size), key=lambda token_id: len(embedded.token_bytes(token_id)))
    text = embedded.token_bytes(token).decode()
    assert len(text) == LONGEST
    assert len(embedded.encode(text, max_tokens=1)) == 1
    assert len(embedded.encode("a" * 100, max_tokens=2)) > 2, "what is left to be counted in tokens is not refused here"
