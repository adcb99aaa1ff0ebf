"""Safetensors of a model directory, one file or several with an index: parts of tensors, read straight to their place.

Files are mapped into memory and let go again as reading goes on, so that what has been read does not stay in the
process. Knows no model.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open

from goose_ray.errors import ModelLoadError
from goose_ray.models.shard_division import TensorSlice

__all__ = ["CheckpointReader", "tensor_files"]

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
# Of a mapped file, at most so many bytes are touched before it is mapped anew. A part of the columns touches every row.
_MAPPED_BYTES = 256 << 20


def tensor_files(directory: Path) -> Mapping[str, Path]:
    """The file that holds each tensor. Raises ModelLoadError if the directory has no weights or lacks a file."""
    try:
        if (single := directory / _SINGLE).is_file():
            with safe_open(single, framework="pt") as file:
                return dict.fromkeys(file.keys(), single)
        weight_map = json.loads((directory / _INDEX).read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ModelLoadError(f"{directory} has neither a readable {_SINGLE} nor {_INDEX}: {error}") from error
    files = {name: directory / file for name, file in weight_map.items()}
    for path in set(files.values()):
        if not path.is_file():
            raise ModelLoadError(f"{directory} lacks {path.name}, which its index names: fetch the model again")
    return files


class CheckpointReader:
    """One reader a thread. Tensors of one file are best read one after the other."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files
        self._path: Path | None = None
        self._open: Any = None
        self._touched = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._open is not None:
            self._open.__exit__(None, None, None)
        self._open = self._path = None
        self._touched = 0

    def read_into(self, target: torch.Tensor, name: str, part: TensorSlice) -> None:
        """Copies the part into `target`, which has its shape and any dtype and device.

        Raises ModelLoadError if the tensor is missing, cut short or of another shape.
        """
        path = self._files.get(name)
        if path is None:
            raise ModelLoadError(f"the checkpoint has no tensor {name}")
        try:
            tensor = self._file(path).get_slice(name)
            shape = tuple(tensor.get_shape())
            if shape != part.whole:
                raise ModelLoadError(f"{name} is {list(shape)} in {path.name}, and {list(part.whole)} in the model")
            for start, stop in _pieces(part, target.element_size()):
                index = [slice(None)] * len(shape)
                if part.dim is not None:
                    index[part.dim] = slice(part.start, part.stop)
                if shape:
                    first = index[0].start or 0
                    index[0] = slice(first + start, first + stop)
                target[start:stop].copy_(tensor[tuple(index)])
                whole_rows = (stop - start) * target.element_size()
                for size in shape[1:]:
                    whole_rows *= size
                self._touched += whole_rows
                if self._touched > _MAPPED_BYTES:
                    self.close()
                    tensor = self._file(path).get_slice(name)
        except (SafetensorError, OSError) as error:
            raise ModelLoadError(f"{name} cannot be read from {path}: {error}") from error

    def _file(self, path: Path) -> Any:
        if self._path != path:
            self.close()
            self._open = safe_open(path, framework="pt")
            self._open.__enter__()
            self._path = path
        return self._open


def _pieces(part: TensorSlice, element_size: int) -> list[tuple[int, int]]:
    """Ranges of the part's rows whose whole rows, as they lie in the file, fit the bound."""
    rows = part.shape[0]
    row_bytes = element_size
    for size in part.whole[1:]:
        row_bytes *= size
    step = max(1, _MAPPED_BYTES // max(1, row_bytes))
    return [(start, min(rows, start + step)) for start in range(0, rows, step)]
