"""The bytes of single tokens, in the usual spellings of vocabularies: together they are the bytes of the text."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from goose_ray.models.token_bytes import TokenBytes

TEXTS = ("Hello, world!  Two spaces.", "é 你好 😀 \u00a0\u00ad end", "\n\ttabs and\x00control")


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    return tokenizer


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_tokens_are_parts_of_the_text(byte_level: Tokenizer, text: str) -> None:
    token_bytes = TokenBytes(byte_level)
    assert b"".join(token_bytes(token) for token in byte_level.encode(text).ids) == text.encode()


def test_every_byte_has_its_token(byte_level: Tokenizer) -> None:
    token_bytes = TokenBytes(byte_level)
    single = {token_bytes(byte_level.get_vocab()[name]) for name in pre_tokenizers.ByteLevel.alphabet()}
    assert single == {bytes([byte]) for byte in range(256)}


def test_special_tokens_have_their_names_and_unknown_ids_nothing(byte_level: Tokenizer) -> None:
    token_bytes = TokenBytes(byte_level)
    assert token_bytes(byte_level.get_vocab()["<|end|>"]) == b"<|end|>"
    assert token_bytes(10_000) == b""


def test_sentencepiece_spellings() -> None:
    vocabulary = {"<unk>": 0, "\u2581the": 1, "\u2581": 2, "<0xF0>": 3, "<0x0A>": 4, "\u00e9": 5}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    token_bytes = TokenBytes(tokenizer)
    assert [token_bytes(token) for token in range(1, 6)] == [b" the", b" ", b"\xf0", b"\n", "é".encode()]
