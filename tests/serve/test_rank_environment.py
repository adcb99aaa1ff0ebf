"""One file for both ends: the environment of `serve run deployments/goose.yaml` names another model, and its ranks.

`make ranks` runs it: it starts a cluster of its own, as `serve run` does where there is none.
"""

import os
import shutil
from pathlib import Path

import pytest
import torch
from tiny_models import tiny_model
from transformers import AutoConfig

from goose_ray.bench.engine.decoders import Case, HttpDecoder
from goose_ray.bench.engine.references import TransformersReference
from goose_ray.bench.prompts import encode
from goose_ray.bench.replies import greedy
from goose_ray.config import EMBEDDED_MODEL
from goose_ray.models.loader import resolve
from goose_ray.models.tokenizer import load_tokenizer
from serve.application import serving
from serve.test_tensor_parallel import ranks

pytestmark = pytest.mark.skipif("GOOSE_RANKS" not in os.environ, reason="`make ranks`: starts a cluster of its own")

MAX_TOKENS = 24
PROMPTS = ("One fish, two fish, one fish, two fish,", "def square(x):", "The capital of France")


def test_another_model_is_served_by_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    embedded = resolve(EMBEDDED_MODEL)
    vocab_size = AutoConfig.from_pretrained(embedded).vocab_size
    tiny_model("qwen3", vocab_size=vocab_size, num_key_value_heads=2).save_pretrained(folder)
    for file in embedded.glob("*token*"):
        shutil.copy(file, folder)
    monkeypatch.setenv("GOOSE_MODEL", str(folder))
    monkeypatch.setenv("GOOSE_TENSOR_PARALLEL_SIZE", "2")
    tokenizer = load_tokenizer(folder)
    cases = [Case(text, text, encode(text, tokenizer, 256)) for text in PROMPTS]
    expected: dict[int, tuple[int, ...]] = {}
    reference = TransformersReference(folder, dtype=torch.float32, device=torch.device("cpu"))
    reference.generate([case.prompt.token_ids for case in cases], MAX_TOKENS, expected.__setitem__)
    with serving("local", tmp_path) as server:
        (model,) = server.get("/v1/models")["data"]
        assert model["id"] == str(folder)
        assert len(ranks()) == 2
        for policy in ("autoregressive", "anisotropic"):
            found = HttpDecoder(server.url).answers(
                cases, greedy(MAX_TOKENS), policy=policy, concurrency=3, on_answer=lambda: None
            )
            assert found == expected, policy
    assert not ranks()
