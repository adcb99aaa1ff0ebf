"""Parts of a model that ranks read from safetensors: DeepSpeed's own sizes, and together the whole model again."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed.inference.config import DeepSpeedInferenceConfig
from deepspeed.module_inject.auto_tp import AutoTP
from deepspeed.module_inject.tp_shard import AutoTPMeta, get_shard_size_list
from safetensors.torch import load_file, save_file
from tiny_models import tiny_model
from torch import nn
from transformers import AutoConfig

from goose_ray.errors import ModelLoadError
from goose_ray.models.checkpoint import CheckpointReader, tensor_files
from goose_ray.models.shard_division import Division, IndivisibleError, TensorSlice
from goose_ray.models.shard_source import CheckpointSource, Skeleton, build_skeleton

KNOWN = ("llama", "qwen2", "qwen3", "mistral")
# Three key-value heads do not divide evenly by two, nor six by four, nor the MLP's sizes, which are divided by 64.
HEADS = {
    2: {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8, "intermediate_size": 97},
    4: {"num_attention_heads": 12, "num_key_value_heads": 6, "head_dim": 8, "intermediate_size": 331},
}


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("family", KNOWN)
def test_layers_are_divided_as_deepspeed_divides_them(family: str, num_ranks: int) -> None:
    model = tiny_model(family, **HEADS[num_ranks])
    ((layer_class, summed),) = AutoTP.tp_parser(model)
    grain = DeepSpeedInferenceConfig().tensor_parallel.tp_grain_size
    meta = AutoTPMeta.from_model_config(model.config, grain)
    parts = [Division(model).slices(rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
    num_divided = 0
    for path, layer in model.named_modules():
        if not isinstance(layer, layer_class):
            continue
        for name, linear in layer.named_modules():
            if not isinstance(linear, nn.Linear):
                continue
            dim = 1 if name in summed or f".{name.rpartition('.')[2]}" in summed else 0
            expected = get_shard_size_list(linear.weight.shape[dim], num_ranks, meta, name)
            found = [part[f"{path}.{name}.weight"] for part in parts]
            assert [part.shape[dim] for part in found] == expected
            assert {part.dim for part in found} == {dim}
            num_divided += 1
    assert num_divided == 7 * model.config.num_hidden_layers


@pytest.mark.parametrize("family", KNOWN)
def test_all_parts_together_are_the_model(family: str) -> None:
    model = tiny_model(family, **HEADS[4])
    parts = [Division(model).slices(rank=rank, num_ranks=4) for rank in range(4)]
    parameters = dict(model.named_parameters())
    del parameters["lm_head.weight"]
    assert parts[0].keys() == parameters.keys()
    for name, parameter in parameters.items():
        of_ranks = [part[name] for part in parts]
        assert all(part.whole == tuple(parameter.shape) for part in of_ranks)
        if (dim := of_ranks[0].dim) is not None:
            pieces = [parameter.narrow(dim, part.start, part.stop - part.start) for part in of_ranks]
            assert torch.equal(torch.cat(pieces, dim), parameter)


def in_two_files(folder: Path) -> None:
    """As large checkpoints lie."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for number, some in enumerate((names[::2], names[1::2])):
        save_file({name: tensors[name] for name in some}, folder / f"model-{number}.safetensors", {"format": "pt"})
        weight_map |= dict.fromkeys(some, f"model-{number}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def loaded(folder: Path, dtype: torch.dtype = torch.float32) -> tuple[Any, Skeleton]:
    """One rank's part of one."""
    parts = Skeleton(build_skeleton(AutoConfig.from_pretrained(folder), dtype), tensor_files(folder))
    model = parts.model
    model.set_output_embeddings(nn.Identity())
    model.to_empty(device="cpu")
    parts.fill(model, rank=0, num_ranks=1)
    return model.base_model, parts


@pytest.mark.parametrize("family", [*KNOWN, "gemma2", "gemma3"])
@pytest.mark.parametrize("tied", [False, True])
def test_what_is_read_computes_what_transformers_loads(tmp_path: Path, family: str, tied: bool) -> None:
    """Rotary frequencies and scales of embeddings too, which are in no checkpoint."""
    tiny_model(family).save_pretrained(tmp_path)
    if tied:
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
        tensors = load_file(tmp_path / "model.safetensors")
        del tensors["lm_head.weight"]
        save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    else:
        in_two_files(tmp_path)
    source = CheckpointSource(str(tmp_path), torch.float32)
    assert (source.parts() is not None) == (family in KNOWN)
    reference = source.whole()
    body, parts = loaded(tmp_path)
    token_ids = torch.arange(20)[None]
    with torch.inference_mode():
        expected = reference.base_model(token_ids).last_hidden_state
        assert torch.equal(body(token_ids).last_hidden_state, expected)
    weight, bias = parts.head_rows(5, 50, torch.device("cpu"))
    assert torch.equal(weight, reference.get_output_embeddings().weight[5:50])
    assert bias is None


def test_rotary_frequencies_are_not_rounded_with_the_weights(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    body, _ = loaded(tmp_path, torch.bfloat16)
    reference: Any = tiny_model("llama").base_model
    assert body.layers[0].mlp.up_proj.weight.dtype == torch.bfloat16
    assert torch.equal(body.rotary_emb.inv_freq, reference.rotary_emb.inv_freq)


@pytest.mark.parametrize(("family", "why"), [("phi3", "qkv_proj"), ("olmo2", "all heads"), ("mixtral", "mlp.gate")])
def test_layers_that_are_not_known_are_named(tmp_path: Path, family: str, why: str) -> None:
    with pytest.raises(IndivisibleError, match=why):
        Division(tiny_model(family))
    tiny_model(family).save_pretrained(tmp_path)
    assert CheckpointSource(str(tmp_path), torch.float32).parts() is None


def test_a_checkpoint_that_lacks_something_is_refused_by_name(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(4, 6)}, tmp_path / "model.safetensors")
    with CheckpointReader(tensor_files(tmp_path)) as reader:
        with pytest.raises(ModelLoadError, match=r"a is \[4, 6\] .* \[4, 8\] in the model"):
            reader.read_into(torch.zeros(4, 4), "a", TensorSlice((4, 8), 1, 0, 4))
        with pytest.raises(ModelLoadError, match="no tensor b"):
            reader.read_into(torch.zeros(4), "b", TensorSlice((4,)))
    in_two_files(tmp_path)
    (tmp_path / "model-0.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"lacks model-0\.safetensors"):
        tensor_files(tmp_path)
