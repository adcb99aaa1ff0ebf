"""A model's name leads to its directory, or to an error that says what would be right."""

import json
from pathlib import Path

import pytest
import torch
from gguf_files import tiny_llama, write_gguf
from transformers.utils.logging import is_progress_bar_enabled

from goose_ray.config import EMBEDDED_MODEL
from goose_ray.errors import ModelLoadError
from goose_ray.models.embedded import pull_embedded
from goose_ray.models.loader import find, load_model, resolve


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    tiny_llama().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_the_embedded_name() -> None:
    assert resolve(EMBEDDED_MODEL) == find(EMBEDDED_MODEL) == pull_embedded()


def test_a_directory_is_itself(saved: Path) -> None:
    assert resolve(str(saved)) == find(str(saved)) == saved


def test_a_gguf_file_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOSE_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "tiny.gguf"
    write_gguf(tiny_llama(), source)
    assert find(str(source)) is None
    path = resolve(str(source))
    assert find(str(source)) == path
    stamp = (path / "model.safetensors").stat().st_mtime_ns
    assert resolve(str(source)) == path
    assert (path / "model.safetensors").stat().st_mtime_ns == stamp


@pytest.mark.parametrize("name", ["no-such-model", "a/b/c", "./missing", "/missing/model.gguf", ""])
def test_an_unknown_name_is_told_what_would_be_right(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert name == "" or find(name) is None
    with pytest.raises(ModelLoadError, match=rf"{EMBEDDED_MODEL}.* hub id .*path|no config\.json"):
        resolve(name)


def test_where_nobody_watches_no_bar_is_drawn(saved: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert is_progress_bar_enabled()
    load_model(saved, dtype=torch.float32, device=torch.device("cpu"))
    assert capfd.readouterr().err == ""
    assert is_progress_bar_enabled()


def test_pickled_weights_are_refused(saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    torch.save(tiny_llama().state_dict(), saved / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match=r"no safetensors .*Pickled .*never loaded"):
        resolve(str(saved))
    with pytest.raises(ModelLoadError, match="safetensors"):
        load_model(saved, dtype=torch.float32, device=torch.device("cpu"))


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(ModelLoadError, match="GGUF"):
        resolve(str(tmp_path / "model.bin"))


def test_a_directory_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        resolve(str(tmp_path))


def test_the_models_own_code_is_not_run(saved: Path) -> None:
    marker = saved / "ran"
    (saved / "modeling_evil.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    config = json.loads((saved / "config.json").read_text())
    config |= {
        "model_type": "evil",
        "auto_map": {"AutoConfig": "modeling_evil.C", "AutoModelForCausalLM": "modeling_evil.M"},
    }
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="cannot be loaded"):
        load_model(saved, dtype=torch.float32, device=torch.device("cpu"))
    assert not marker.exists()


def test_load_model_gives_the_dtype_asked_for(saved: Path) -> None:
    model = load_model(saved, dtype=torch.bfloat16, device=torch.device("cpu"))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert not model.training
