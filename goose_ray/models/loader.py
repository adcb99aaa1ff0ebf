"""Finds a model by name, and loads it: the embedded model, a Hugging Face hub id, a local directory or GGUF file.

Only safetensors and GGUF are read, never pickle, and no code that comes with a model is run. Knows nothing about how
the model is used.
"""

import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import torch
from huggingface_hub import snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, RepositoryNotFoundError
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

from goose_ray.config import EMBEDDED_MODEL
from goose_ray.errors import ModelLoadError
from goose_ray.models import gguf
from goose_ray.models.embedded import find_embedded, model_store, pull_embedded
from goose_ray.models.store import sha256_of

__all__ = ["find", "load_model", "require_name", "resolve"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_FILES = ["*.safetensors", "*.json", "*.jinja", "*.model", "tokenizer*", "merges.txt", "vocab.txt"]
# Second copies of the same weights in other layouts, as some releases carry them.
_HUB_FILES_LEFT = ["consolidated*", "original/*", "onnx/*"]
# What a quantised GGUF file (at most 8 bits a weight) grows by, at least, when written as fp32.
_GGUF_TO_FP32 = 4


def resolve(model: str) -> Path:
    """The directory that holds the model, fetched or converted first if need be.

    Raises ModelLoadError if there is no such model, it cannot be fetched, or it has no weights that are safe to load.
    """
    if model == EMBEDDED_MODEL:
        return pull_embedded()
    path = Path(model).expanduser()
    if path.is_file():
        return _from_gguf(path)
    if path.is_dir():
        return _checked(path, model)
    if _HUB_ID.fullmatch(model):
        return _checked(_from_hub(model), model)
    raise _unknown(model)


def require_name(model: str) -> None:
    """Raises ModelLoadError for what is no model anywhere. A path with a slash may lie on other machines alone."""
    if model != EMBEDDED_MODEL and "/" not in model and not Path(model).expanduser().exists():
        raise _unknown(model)


def find(model: str) -> Path | None:
    """The directory that `resolve` would give, or None if it would have to fetch or convert first."""
    if model == EMBEDDED_MODEL:
        return find_embedded()
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        return model_store().find(_gguf_name(sha256_of(path)), gguf.RECIPE)
    if not _HUB_ID.fullmatch(model):
        return None
    config = try_to_load_from_cache(model, "config.json")
    return Path(config).parent if isinstance(config, str) else None


def load_model(path: Path, *, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """The model, ready for inference. Raises ModelLoadError if transformers cannot build it."""
    try:
        with _bars_on_terminals_alone():
            model = AutoModelForCausalLM.from_pretrained(
                path, dtype=dtype, use_safetensors=True, trust_remote_code=False, local_files_only=True
            )
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise ModelLoadError(f"the model in {path} cannot be loaded as a causal language model: {error}") from error
    return model.to(device).eval().requires_grad_(False)


@contextmanager
def _bars_on_terminals_alone() -> Generator[None]:
    """In a log each state of a progress bar is a line."""
    if sys.stderr.isatty() or not is_progress_bar_enabled():
        yield
        return
    disable_progress_bar()
    try:
        yield
    finally:
        enable_progress_bar()


def _unknown(model: str) -> ModelLoadError:
    return ModelLoadError(
        f"there is no model {model!r}: give {EMBEDDED_MODEL!r} (the embedded model), a hub id such as "
        "'Qwen/Qwen3-0.6B', or the path of a model directory or GGUF file"
    )


def _from_gguf(path: Path) -> Path:
    if path.suffix != ".gguf":
        raise ModelLoadError(f"{path} is a file but no .gguf: give a GGUF file or a model directory")
    source_sha256 = sha256_of(path)

    def fill(directory: Path) -> str:
        gguf.convert(path, directory, progress=False)
        return source_sha256

    needed_bytes = path.stat().st_size * _GGUF_TO_FP32
    return model_store().build(_gguf_name(source_sha256), gguf.RECIPE, needed_bytes=needed_bytes, fill=fill)


def _gguf_name(source_sha256: str) -> str:
    return f"gguf-{source_sha256[:16]}"


def _from_hub(model: str) -> Path:
    try:
        return Path(snapshot_download(model, allow_patterns=_HUB_FILES, ignore_patterns=_HUB_FILES_LEFT))
    except GatedRepoError as error:
        raise ModelLoadError(f"{model!r} is gated: accept its licence on the hub, then `hf auth login`") from error
    except RepositoryNotFoundError as error:
        raise ModelLoadError(f"the hub has no model {model!r}; if it is private, `hf auth login` first") from error
    except (OSError, HfHubHTTPError, HFValidationError) as error:
        raise ModelLoadError(
            f"{model!r} is no directory here and could not be fetched from the hub: {error} "
            f"Check the network, or give a local path or the embedded model {EMBEDDED_MODEL!r}."
        ) from error


def _checked(path: Path, model: str) -> Path:
    """The path, if what it holds is a model that is safe to load."""
    if not (path / "config.json").is_file():
        raise ModelLoadError(f"{model!r} holds no config.json: it is no Hugging Face model directory")
    if not any(path.glob("*.safetensors")):
        raise ModelLoadError(
            f"{model!r} holds no safetensors weights. Pickled checkpoints (.bin, .pt, .pth) are never loaded, because "
            "reading one can run any code: convert it, or use a release in safetensors."
        )
    return path
