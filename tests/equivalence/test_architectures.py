"""Whatever transformers can build as a causal language model: refused when it is loaded, or right.

`GOOSE_ARCHITECTURES=all` (`make families`) tries every one that can be made tiny, some 150; here a few that differ most
from those of `tiny_models`. Windows are shorter than the sequences.
"""

import copy
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from runner_steps import Part, SlotDealer, build_step
from tiny_models import VOCAB_SIZE, WINDOW
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from goose_ray.errors import ConfigError, ModelLoadError
from goose_ray.runner.local import LocalRunner

# Learned positions, latent attention, experts, parallel blocks, keys shared by layers, scaled scores.
_FEW = ("gpt2", "deepseek_v3", "olmoe", "cohere2", "gemma3n_text", "granite")
_CHOSEN = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) if os.environ.get("GOOSE_ARCHITECTURES") == "all" else _FEW
_MOST_PARAMETERS = 30e6
_NUM_LAYERS = 4

# Sizes by all the names that configs have for them.
_SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), _NUM_LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "decoder_ffn_dim"), 96),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 512),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCAB_SIZE),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "head_dim": 16,
    "rotary_dim": 8,
    "sliding_window": WINDOW,
    "use_sliding_window": True,
    "max_window_layers": 2,
    "hidden_size_per_layer_input": 16,
    "num_kv_shared_layers": 2,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# Latent attention counts its heads otherwise.
_LATENT = {"num_key_value_heads": 4, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}


def _config(name: str) -> PreTrainedConfig:
    of_class = CONFIG_MAPPING[name]
    fields = set(getattr(of_class, "__dataclass_fields__", ())) | set(of_class.attribute_map)
    sizes = {field: size for field, size in _SIZES.items() if field in fields}
    if "kv_lora_rank" in fields:
        sizes = {**sizes, **{field: size for field, size in _LATENT.items() if field in fields}}
        sizes.pop("head_dim", None)
    # One name for each size.
    for alias, field in of_class.attribute_map.items():
        if field in sizes:
            sizes.pop(alias, None)
    if name == "gemma3n_text":
        sizes |= {"activation_sparsity_pattern": [0.0] * _NUM_LAYERS}
    return of_class(**sizes)


def _model(config: PreTrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    # A runner changes the config of the model that it is given.
    return AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=torch.float32).eval()


def _tiny(name: str) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Two alike; skips what cannot be built from sizes alone."""
    try:
        config = _config(name)
        with torch.device("meta"):
            empty = AutoModelForCausalLM.from_config(config)
        if sum(parameter.numel() for parameter in empty.parameters()) > _MOST_PARAMETERS:
            pytest.skip("its config has sizes by other names")
        models = _model(config), _model(config)
        models[0](input_ids=torch.tensor([[3, 4]]), use_cache=False)
    except (AttributeError, ImportError, KeyError, RuntimeError, TypeError, ValueError, AssertionError) as error:
        if name in _FEW:
            raise
        pytest.skip(f"not built: {error}")
    return models


def _expected(model: PreTrainedModel, context: Sequence[int], part: Part) -> torch.Tensor:
    """[rows, vocab]: a plain forward along every path from the root, of which the last logits count."""
    paths = [part.chain[: i + 1] for i in range(len(part.chain))]
    if (tree := part.tree) is not None:
        paths += [[*part.chain, *tree.token_ids[tree.path_to(node)].tolist()] for node in range(1, tree.num_nodes)]
    with torch.inference_mode():
        logits = [model(input_ids=torch.tensor([[*context, *path]]), use_cache=False).logits[0, -1] for path in paths]
    return torch.stack(logits).float()


@pytest.mark.parametrize("name", _CHOSEN)
def test_refused_or_right(name: str) -> None:
    model, taken = _tiny(name)
    try:
        runner = LocalRunner(taken, model_id=name, num_slots=200)
    except (ModelLoadError, ConfigError):
        if name in _FEW:
            raise
        return
    dealer, draw = SlotDealer(200, seed=5), np.random.default_rng(3)

    def tokens(count: int) -> list[int]:
        return [int(token) for token in draw.integers(3, VOCAB_SIZE, count)]

    context, slots = tokens(3 * WINDOW), dealer.deal(3 * WINDOW)
    runner.logits(build_step([Part(chain=context[:10])], slots[:10]))
    runner.logits(build_step([Part(chain=context[10:], context_slots=slots[:10].tolist())], slots[10:]))
    parts = [
        Part(chain=tokens(1), context_slots=slots.tolist(), drafts=(tokens(9), [0, 0, 1, 1, 3, 0, 6, 7, 8])),
        Part(chain=tokens(WINDOW + 3)),
        Part(chain=tokens(2), context_slots=slots.tolist(), drafts=(tokens(4), [0, 1, 2, 3])),
    ]
    ours = runner.logits(build_step(parts, dealer.deal(sum(part.num_rows for part in parts))))
    contexts = [context, [], context]
    expected = torch.cat([_expected(model, before, part) for before, part in zip(contexts, parts, strict=True)])
    torch.testing.assert_close(ours, expected, rtol=0, atol=3e-5 * float(expected.abs().max()))
