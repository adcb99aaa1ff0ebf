"""GGUF to Hugging Face: the same model comes out, or nothing does."""

from pathlib import Path

import pytest
import torch
from gguf_files import CHAT_TEMPLATE, SPECIAL_TOKENS, tiny_llama, vocabulary, write_gguf
from transformers import AutoModelForCausalLM, AutoTokenizer

from goose_ray.errors import ModelLoadError
from goose_ray.models import gguf
from goose_ray.models.tokenizer import load_tokenizer


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("converted")
    source = tmp_path_factory.mktemp("source") / "tiny.gguf"
    write_gguf(tiny_llama(), source)
    gguf.convert(source, directory, progress=False)
    return directory


def test_logits_are_those_of_the_model_that_was_written(converted: Path) -> None:
    ids = torch.randint(0, len(vocabulary()), (1, 40), generator=torch.Generator().manual_seed(3))
    model = AutoModelForCausalLM.from_pretrained(converted).eval()
    with torch.inference_mode():
        torch.testing.assert_close(model(ids).logits, tiny_llama()(ids).logits, rtol=0, atol=1e-6)


def test_config_is_plain_fp32(converted: Path) -> None:
    config = AutoModelForCausalLM.from_pretrained(converted).config
    assert config.dtype == torch.float32
    assert config.rms_norm_eps == 1e-5, "not fp32's nearest"
    assert config.rope_parameters["rope_theta"] == 5000.0
    assert config.max_position_embeddings == 128
    assert config.tie_word_embeddings
    assert "quantization_config" not in (converted / "config.json").read_text()


def test_tokenizer_splits_digits_and_applies_merges(converted: Path) -> None:
    tokens = vocabulary()
    tokenizer = load_tokenizer(converted)
    assert [tokens[i] for i in tokenizer.encode("th 1212")] == ["th", "Ġ", "1", "2", "1", "2"]
    assert tokenizer.decode(tokenizer.encode("é th 12\n")) == "é th 12\n"


def test_special_tokens_and_chat_template(converted: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(converted)
    assert (tokenizer.bos_token, tokenizer.eos_token) == SPECIAL_TOKENS[1:]
    assert tokenizer.chat_template == CHAT_TEMPLATE
    assert tokenizer.encode("a<|im_end|>") == [vocabulary().index("a"), 2]
    assert load_tokenizer(converted).eos_token_ids == (2,)


@pytest.mark.parametrize(
    ("changed", "named"), [({"architecture": "qwen2"}, "'qwen2'"), ({"pre": "llama-bpe"}, "'llama-bpe'")]
)
def test_what_cannot_be_converted_faithfully_is_refused(tmp_path: Path, changed: dict[str, str], named: str) -> None:
    write_gguf(tiny_llama(), tmp_path / "tiny.gguf", **changed)
    with pytest.raises(ModelLoadError, match=named):
        gguf.convert(tmp_path / "tiny.gguf", tmp_path, progress=False)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no GGUF at all", b"GGUF\x03\x00\x00\x00"])
def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken.gguf").write_bytes(content)
    with pytest.raises(ModelLoadError, match="GGUF"):
        gguf.convert(tmp_path / "broken.gguf", tmp_path, progress=False)
