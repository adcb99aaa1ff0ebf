"""Ranks read their parts and no more: the most memory that each has had, with a checkpoint that is written here.

`make shards` runs it with 4 GB, at two ranks and at four.
"""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig

from goose_ray.models.shard_division import Division
from goose_ray.models.shard_source import CheckpointSource, build_skeleton
from goose_ray.runner.rank_bundles import RankBundles
from goose_ray.runner.rank_gang import GangOptions, RankGang

pytestmark = pytest.mark.skipif("GOOSE_SHARD_GB" not in os.environ, reason="`make shards`: writes gigabytes")

BYTES = int(float(os.environ.get("GOOSE_SHARD_GB", "4")) * 1e9)
ITEM_SIZE = 2


def config_of(num_layers: int) -> LlamaConfig:
    """Layers of the size of Llama 3 8B's, 0.44 GB each, and embeddings of 0.26 GB, in 16 bits."""
    return LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=num_layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=32000,
        bos_token_id=None,
        eos_token_id=None,
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file a layer and one for the rest, with an index."""
    folder = tmp_path_factory.mktemp("checkpoint")
    model = build_skeleton(config_of(1), torch.bfloat16)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    of_layer = {name: shape for name, shape in shapes.items() if ".layers.0." in name}
    layer_bytes = ITEM_SIZE * sum(torch.Size(shape).numel() for shape in of_layer.values())
    rest_bytes = ITEM_SIZE * sum(torch.Size(shape).numel() for shape in shapes.values()) - layer_bytes
    num_layers = -(-(BYTES - rest_bytes) // layer_bytes)
    weight_map: dict[str, str] = {}
    random = torch.Generator().manual_seed(0)
    for number in range(-1, num_layers):
        wanted = of_layer if number >= 0 else {name: s for name, s in shapes.items() if name not in of_layer}
        tensors = {
            name.replace(".0.", f".{number}."): torch.empty(shape, dtype=torch.bfloat16).normal_(
                std=0.02, generator=random
            )
            for name, shape in wanted.items()
        }
        file = f"model-{number + 1}.safetensors"
        save_file(tensors, folder / file, {"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    config_of(num_layers).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_no_rank_has_had_much_more_memory_than_its_share(
    ray_address: str, checkpoint: Path, num_ranks: int, capsys: pytest.CaptureFixture[str]
) -> None:
    config = LlamaConfig.from_pretrained(checkpoint)
    slices = Division(build_skeleton(config, torch.bfloat16)).slices(rank=0, num_ranks=num_ranks)
    share = ITEM_SIZE * sum(torch.Size(part.shape).numel() for part in slices.values())
    share += ITEM_SIZE * config.hidden_size * -(-config.vocab_size // num_ranks)
    bundles = RankBundles.find(num_ranks, device="cpu", strategy="PACK", cpus_per_rank=0.25)
    gang = RankGang(GangOptions(num_ranks=num_ranks, device="cpu", num_threads=1, shares_cores=True), bundles)
    try:
        gang.call(
            "load",
            CheckpointSource(str(checkpoint), torch.bfloat16),
            model_id="synthetic",
            num_slots=64,
            max_model_len=None,
            attention_backend="auto",
        )
        peaks = [peak_bytes(pid) for pid in gang.pids]
    finally:
        gang.kill()
    with capsys.disabled():
        figures = ", ".join(f"{peak / 1e9:.2f}" for peak in peaks)
        print(f"\n{num_ranks} ranks: a share is {share / 1e9:.2f} GB, most memory of each was {figures} GB")  # noqa: T201
    assert max(peaks) <= 1.25 * share + 1e9


def peak_bytes(pid: int) -> int:
    """Largest resident size so far, mapped files included."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return 1024 * int(line.split()[1])
