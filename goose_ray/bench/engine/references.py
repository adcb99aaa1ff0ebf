"""Plain greedy decoding to compare with, kept on disk because it is slow and always the same.

Two kinds: this engine without speculation, and transformers' own `generate`, which shares no code with it. What is kept
is keyed by everything it depends on, this project's own code included.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

import torch
import transformers
from transformers import PreTrainedModel

import goose
import goose_ray.engine
import goose_ray.runner
from goose.policies.autoregressive import AutoregressivePolicy
from goose_ray.assembly import ReplicaParts, new_engine
from goose_ray.bench.replies import answer_each, greedy
from goose_ray.config import EngineConfig, cache_dir
from goose_ray.models.loader import load_model
from goose_ray.models.store import Marker, sha256_of

__all__ = ["EngineReference", "Reference", "ReferenceStore", "TokenIds", "TransformersReference", "weights_id"]

TokenIds = tuple[int, ...]


class Reference(Protocol):
    """A way to decode greedily. `fingerprint` names everything its output depends on besides the prompt."""

    @property
    def fingerprint(self) -> str: ...

    def generate(self, prompts: Sequence[TokenIds], max_tokens: int, on_reply: Callable[[int, TokenIds], None]) -> None:
        """Calls `on_reply` with each prompt's index and token ids, in any order."""
        ...


class EngineReference:
    """The engine that serves, with the policy `autoregressive`: one node a step."""

    def __init__(self, parts: ReplicaParts, config: EngineConfig, *, concurrency: int) -> None:
        self._parts = parts
        self._config = config.model_copy(update={"policy": AutoregressivePolicy.name, "budget": 1})
        self._concurrency = concurrency

    @property
    def fingerprint(self) -> str:
        code = _sources_sha256([Path(m.__path__[0]) for m in (goose, goose_ray.engine, goose_ray.runner)])
        return f"engine {code} {self._concurrency} {_versions()}"

    def generate(self, prompts: Sequence[TokenIds], max_tokens: int, on_reply: Callable[[int, TokenIds], None]) -> None:
        answer_each(
            new_engine(self._parts, self._config),
            prompts,
            greedy(max_tokens),
            concurrency=self._concurrency,
            on_reply=lambda index, reply: on_reply(index, reply.token_ids),
        )


class TransformersReference:
    """`generate(do_sample=False)` of the unmodified model, one prompt at a time."""

    def __init__(self, path: Path, *, dtype: torch.dtype, device: torch.device) -> None:
        self._path, self._dtype, self._device = path, dtype, device
        self._model: PreTrainedModel | None = None

    @property
    def fingerprint(self) -> str:
        return f"transformers {_versions()}"

    @property
    def model(self) -> PreTrainedModel:
        """Loaded when first asked for: with all references kept on disk it never is."""
        if self._model is None:
            self._model = load_model(self._path, dtype=self._dtype, device=self._device)
        return self._model

    def generate(self, prompts: Sequence[TokenIds], max_tokens: int, on_reply: Callable[[int, TokenIds], None]) -> None:
        for index, prompt in enumerate(prompts):
            ids = torch.tensor([prompt], device=self._device)
            with torch.inference_mode():
                output = self.model.generate(
                    ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False
                )
            on_reply(index, tuple(output[0, len(prompt) :].tolist()))


class ReferenceStore:
    """References of one model, those made before read from the cache directory."""

    def __init__(self, reference: Reference, *, weights: str, dtype: torch.dtype) -> None:
        self._reference = reference
        self._scope = f"{reference.fingerprint} {weights} {dtype}"
        self._directory = cache_dir() / "references"

    def token_ids(
        self, prompts: Iterable[TokenIds], max_tokens: int, on_reply: Callable[[], object] = lambda: None
    ) -> dict[TokenIds, TokenIds]:
        """The greedy tokens of each prompt. `on_reply` is called for each of them, decoded now or kept."""
        known: dict[TokenIds, TokenIds] = {}
        absent: list[TokenIds] = []
        for prompt in dict.fromkeys(prompts):
            file = self._file(prompt, max_tokens)
            if file.is_file():
                known[prompt] = tuple(json.loads(file.read_text(encoding="utf-8")))
                on_reply()
            else:
                absent.append(prompt)

        def keep(index: int, token_ids: TokenIds) -> None:
            known[absent[index]] = token_ids
            _write_whole(self._file(absent[index], max_tokens), json.dumps(token_ids))
            on_reply()

        if absent:
            self._reference.generate(absent, max_tokens, keep)
        return known

    def _file(self, prompt: TokenIds, max_tokens: int) -> Path:
        key = json.dumps([self._scope, prompt, max_tokens])
        return self._directory / f"{hashlib.sha256(key.encode()).hexdigest()}.json"


def weights_id(path: Path) -> str:
    """Names the weights in a directory: by hash where a conversion noted it, else by the files' sizes and times."""
    marker = Marker.read(path)
    if marker is not None:
        return marker.weights_sha256
    files = [(file.name, file.stat()) for file in sorted(path.glob("*.safetensors"))]
    return json.dumps([str(path.resolve()), *((name, stat.st_size, stat.st_mtime_ns) for name, stat in files)])


def _versions() -> str:
    return f"torch {torch.__version__} transformers {transformers.__version__}"


def _sources_sha256(packages: Iterable[Path]) -> str:
    files = sorted(file for package in packages for file in package.rglob("*.py"))
    return hashlib.sha256("".join(map(sha256_of, files)).encode()).hexdigest()


def _write_whole(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
