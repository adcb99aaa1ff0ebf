"""What LocalRunner says of a model, which models it refuses and why, and what it harvests."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from runner_steps import GREEDY, Part, build_step
from tiny_models import VOCAB_SIZE, tiny_model
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedConfig

from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.errors import ConfigError, EngineDeadError, ModelLoadError
from goose_ray.runner.kv_pool import KVPool, LayerShape
from goose_ray.runner.local import LocalRunner

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.3,
}

_REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "recurrent layers": ("JambaConfig", {**_SHAPE, "num_experts": 2, "mamba_d_state": 4}, "'linear_attention'"),
    "a window that attention is not told": (
        "Qwen2MoeConfig",
        {
            **_SHAPE,
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
            "use_sliding_window": True,
            "max_window_layers": 2,
            "sliding_window": 4,
        },
        "sliding window of 4",
    ),
    "both directions": ("BertConfig", {**_SHAPE, "is_decoder": False}, "other logits under tree attention"),
    "attention sinks": ("GptOssConfig", {**_SHAPE, "head_dim": 8, "num_local_experts": 4}, "'s_aux'"),
    "state space": ("MambaConfig", {"vocab_size": VOCAB_SIZE, "hidden_size": 48, "num_hidden_layers": 2}, "type"),
    "chunked attention": (
        "Llama4TextConfig",
        {**_SHAPE, "head_dim": 8, "num_local_experts": 2, "intermediate_size_mlp": 96},
        "'chunked_attention'",
    ),
    "attention of its own": (
        "FalconConfig",
        {"vocab_size": VOCAB_SIZE, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6},
        "AttentionInterface",
    ),
    "ALiBi": ("BloomConfig", {"vocab_size": VOCAB_SIZE, "hidden_size": 48, "n_layer": 2, "n_head": 6}, "max_position"),
}


def _model(config_class: str, fields: dict[str, Any]) -> transformers.PreTrainedModel:
    config: PreTrainedConfig = getattr(transformers, config_class)(**fields)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


@pytest.mark.parametrize("name", _REFUSED)
def test_unsupported_architectures_are_refused_by_name(name: str) -> None:
    config_class, fields, message = _REFUSED[name]
    with pytest.raises(ModelLoadError, match=message):
        LocalRunner(_model(config_class, fields), model_id=name, num_slots=64)


def test_an_encoder_decoder_is_refused() -> None:
    config = transformers.T5Config(vocab_size=VOCAB_SIZE, d_model=48, num_layers=1, num_heads=6, d_kv=8, d_ff=96)
    with pytest.raises(ModelLoadError, match="encoder-decoder"):
        LocalRunner(AutoModelForSeq2SeqLM.from_config(config), model_id="t5", num_slots=64)


@pytest.mark.parametrize(
    ("config_class", "fields"),
    [
        ("CohereConfig", {"logit_scale": 0.25}),
        ("GraniteConfig", {"logits_scaling": 8.0, "attention_multiplier": 0.1, "residual_multiplier": 0.5}),
        ("Cohere2Config", {"sliding_window": 4}),
        ("Gemma2Config", {"head_dim": 8, "attn_logit_softcapping": 2.0, "sliding_window": 4}),
    ],
)
def test_families_that_scale_logits_or_scores_run(config_class: str, fields: dict[str, Any]) -> None:
    """The trial at load compares our logits with the model's own, so that running is being right."""
    LocalRunner(_model(config_class, {**_SHAPE, **fields}), model_id=config_class, num_slots=64)


def test_a_head_that_is_not_reproduced_is_refused_by_the_trial() -> None:
    model = tiny_model("llama")
    plain_forward = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        output = plain_forward(*args, **kwargs)
        output.logits = output.logits * 1.01
        return output

    model.forward = forward
    with pytest.raises(ModelLoadError, match="LlamaForCausalLM gives other logits under tree attention"):
        LocalRunner(model, model_id="scaled", num_slots=64)


def test_rotary_embeddings_that_depend_on_the_batch_limit_the_length() -> None:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
        "original_max_position_embeddings": 64,
    }
    fields = {**_SHAPE, "rope_parameters": rope, "original_max_position_embeddings": 64}
    model = _model("Phi3Config", fields)
    with pytest.raises(ConfigError, match=r"max_model_len must be at most 64 .*'longrope'.*, not 100"):
        LocalRunner(model, model_id="long", num_slots=64, max_model_len=100)
    assert LocalRunner(_model("Phi3Config", fields), model_id="long", num_slots=64).spec.max_model_len == 64


def test_spec_states_the_model() -> None:
    spec = LocalRunner(tiny_model("llama"), model_id="tiny", num_slots=70).spec
    assert (spec.model_id, spec.vocab_size, spec.max_model_len, spec.num_slots) == ("tiny", VOCAB_SIZE, 512, 70)
    assert spec.eos_token_ids == ()
    with pytest.raises(ConfigError, match=r"max_model_len must be at most 512 .*, not 513"):
        LocalRunner(tiny_model("llama"), model_id="tiny", num_slots=70, max_model_len=513)


@pytest.mark.parametrize(
    ("in_config", "in_generation_config", "expected"),
    [(5, None, (5,)), (5, 7, (7,)), (5, [7, 9], (7, 9)), ([3, 4], None, (3, 4)), (0, None, (0,))],
)
def test_end_of_sequence_ids(in_config: Any, in_generation_config: Any, expected: tuple[int, ...]) -> None:
    model = tiny_model("llama")
    model.config.eos_token_id = in_config
    model.generation_config.eos_token_id = in_generation_config
    assert LocalRunner(model, model_id="tiny", num_slots=64).spec.eos_token_ids == expected


def test_a_pool_that_cannot_fit_is_refused_with_both_figures() -> None:
    layer = LayerShape(kv_heads=1024, key_dim=1024, value_dim=1024)
    with pytest.raises(ConfigError, match=r"kv_cache_tokens 100000000 needs 7\d\d\d\d\d\.\d\d GiB of KV .* has \d+"):
        KVPool([layer], num_slots=100_000_000, dtype=torch.float32, device=torch.device("cpu"))
    with pytest.raises(ConfigError, match="kv_cache_tokens must be at least 8, not 7"):
        LocalRunner(tiny_model("llama"), model_id="tiny", num_slots=7)


def test_a_runner_that_was_shut_down_says_so() -> None:
    runner = LocalRunner(tiny_model("llama"), model_id="tiny", num_slots=64)
    runner.check_health()
    runner.shutdown()
    runner.shutdown()
    with pytest.raises(EngineDeadError, match="tiny"):
        runner.check_health()
    with pytest.raises(EngineDeadError, match="tiny"):
        runner.execute(build_step([Part(chain=[1])], np.arange(1)))


def test_harvest_covers_trees_and_the_chains_that_ask_for_it() -> None:
    runner = LocalRunner(tiny_model("llama"), model_id="tiny", num_slots=512)
    chain = np.random.default_rng(0).integers(0, VOCAB_SIZE, 150).tolist()
    parts = [
        Part(chain=chain, harvest_chain=True),
        Part(chain=[4, 5, 6]),
        Part(chain=[7, 8], drafts=([1, 2, 3], [0, 1, 0])),
        Part(chain=[9, 10], drafts=([1], [0]), sampling=SamplingParams(seed=1), harvest_chain=True),
    ]
    batch = build_step(parts, np.arange(161), harvest_k=4)
    harvest = runner.execute(batch).harvest
    assert harvest is not None
    rows = [*range(150), 154, 155, 156, 157, 158, 159, 160]
    assert harvest.rows.tolist() == rows
    # More rows than are scored at once: the chunks join without a seam.
    expected = runner.logits(batch)[rows].softmax(-1).topk(4)
    assert harvest.top_ids.tolist() == expected.indices.tolist()
    assert harvest.top_ids.dtype == np.int64
    assert harvest.top_probs.dtype == np.float32
    np.testing.assert_allclose(harvest.top_probs, expected.values.numpy(), rtol=1e-5)


def test_nothing_is_harvested_unless_asked() -> None:
    runner = LocalRunner(tiny_model("llama"), model_id="tiny", num_slots=64)
    parts = [Part(chain=[4, 5, 6], harvest_chain=True), Part(chain=[7], drafts=([1], [0]), sampling=GREEDY)]
    output = runner.execute(build_step(parts, np.arange(5)))
    assert output.harvest is None
    assert output.paths[0] is None
    assert output.paths[1] is not None
    prefill = runner.execute(build_step([Part(chain=[4, 5, 6])], np.arange(3), harvest_k=4))
    assert prefill.harvest is None


def test_greedy_takes_the_lowest_id_of_equals() -> None:
    """As torch.argmax, and with it transformers, does."""
    model = tiny_model("llama")
    with torch.no_grad():
        model.lm_head.weight.zero_()
    output = LocalRunner(model, model_id="tied", num_slots=64).execute(
        build_step([Part(chain=[7], drafts=([0, 0, 5], [0, 1, 2]))], np.arange(4))
    )
    path = output.paths[0]
    assert path is not None
    assert path.accepted_nodes.tolist() == [1, 2]
    assert path.token_ids.tolist() == [0, 0, 0]
