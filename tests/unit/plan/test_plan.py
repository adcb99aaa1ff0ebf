"""What `goose plan` says of the deployments, worked out by hand from the models' configs and the GPUs' data sheets."""

import json
from pathlib import Path

import pytest
import ray
import yaml
from click.testing import CliRunner
from plan_tables import DEPLOYMENTS, FILES, plan_table
from ray.serve.schema import ServeDeploySchema

from goose_ray.api.ingress import INGRESS_OPTIONS
from goose_ray.app import build_app
from goose_ray.cli.deployment_file import DeploymentFile
from goose_ray.cli.main import main
from goose_ray.config import GooseConfig
from goose_ray.errors import ConfigError
from goose_ray.plan.architecture import Architecture, known_models, read_config
from goose_ray.plan.budget import NODES_AND_TAU, best_budget, path_probabilities
from goose_ray.plan.deployment import plan_deployment
from goose_ray.plan.dry_run import dry_run
from goose_ray.plan.gpus import GPUS

FOR_40_GB = ("llama-3-8b",)

# By hand, for rank 0: parameters, and bytes of KV a token.
# vicuna, 13 of 52 heads: layer 4 x 6656 x 1664 + 3 x 6656 x 4480 + 2 x 6656 = 133,772,288; 60 of them, a norm of 6656,
# 32000 x 6656 input embeddings and a quarter of as many output embeddings.
_VICUNA = 60 * 133_772_288 + 6656 + 212_992_000 + 53_248_000
# deepseek, 14 of 56 query and 2 of 8 key-value heads: 7168 x 128 x (14 + 4 + 14) + 3 x 7168 x 4800 + 2 x 7168.
_DEEPSEEK = 62 * 132_593_664 + 7168 + 231_211_008 + 57_802_752
# qwen3, 16 of 64 and 2 of 8: 5120 x 128 x (16 + 4 + 16) + 3 x 5120 x 6400 + 2 x 5120 + 2 x 128.
_QWEN3 = 64 * 121_907_456 + 5120 + 777_912_320 + 194_478_080
# llama, all of 32 and 8: 4096 x 128 x (32 + 16 + 32) + 3 x 4096 x 14336 + 2 x 4096.
_LLAMA = 32 * 218_112_000 + 4096 + 525_336_576 + 525_336_576
BY_HAND = {
    "vicuna-33b": (_VICUNA, 60 * 2 * 13 * 128 * 2),
    "deepseek-coder-33b": (_DEEPSEEK, 62 * 2 * 2 * 128 * 2),
    "qwen3-32b": (_QWEN3, 64 * 2 * 2 * 128 * 2),
    "llama-3-8b": (_LLAMA, 32 * 2 * 8 * 128 * 2),
}


def config_of(name: str) -> GooseConfig:
    return DeploymentFile(str(DEPLOYMENTS / f"{name}.yaml")).config


@pytest.mark.parametrize("name", FILES)
def test_weights_and_kv_are_those_of_hand_arithmetic(name: str) -> None:
    parameters, kv_per_token = BY_HAND[name]
    config = config_of(name)
    memory = plan_deployment(config, "H200-141GB").memory
    assert memory.weights == 2 * parameters
    assert memory.kv_per_token == kv_per_token
    assert memory.kv == (config.engine.kv_cache_tokens + 1) * kv_per_token


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("name", FILES)
def test_a_step_takes_what_hand_arithmetic_says(name: str, gpu: str) -> None:
    """One node, 2048 tokens of context: weights but the input embeddings, and KV, at 0.8 of the bandwidth."""
    parameters, kv_per_token = BY_HAND[name]
    config, numbers = config_of(name), known_models()[config_of(name).model]
    ranks, hidden, layers = config.tensor_parallel_size, numbers["hidden_size"], numbers["num_hidden_layers"]
    read = 2 * (parameters - numbers["vocab_size"] * hidden) + 2048 * kv_per_token
    seconds = read / (0.8 * GPUS[gpu].bandwidth) + 1.5e-3
    if ranks > 1:
        seconds += 2 * layers * (10e-6 + 1.5 * hidden * 2 / (0.6 * GPUS[gpu].link / 2))
    assert plan_deployment(config, gpu).step_s[1] == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize("name", FILES)
def test_the_deployments_are_valid_and_fit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("GOOSE_MODEL", "GOOSE_TENSOR_PARALLEL_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    path = DEPLOYMENTS / f"{name}.yaml"
    schema = ServeDeploySchema.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    assert {one.name for one in schema.applications[0].deployments} == {"GooseServer", "OpenAIIngress"}
    # A gang's GPUs are in its placement group; a replica without one must ask for its own.
    (server,) = [one for one in schema.applications[0].deployments if one.name == "GooseServer"]
    num_gpus = server.ray_actor_options.num_gpus or 0
    assert num_gpus == (1 if config_of(name).tensor_parallel_size == 1 else 0)
    # An ingress that is replaced hears out what its replicas have, however long they may take for it.
    (ingress,) = [one for one in schema.applications[0].deployments if one.name == "OpenAIIngress"]
    assert not ingress.model_fields_set & {"graceful_shutdown_timeout_s", "max_surge_percent"}
    assert INGRESS_OPTIONS["graceful_shutdown_timeout_s"] > server.graceful_shutdown_timeout_s
    was_connected = ray.is_initialized()
    build_app(schema.applications[0].args)
    assert ray.is_initialized() == was_connected
    # tuned for GPUs of 80 GB, but for the smallest
    for gpu in ["A100-80GB", "H100-80GB", "H200-141GB"] + ["A100-40GB"] * (name in FOR_40_GB):
        planned = plan_deployment(config_of(name), gpu)
        assert planned.refusal() is None
        assert planned.memory.kv_tokens_that_fit >= planned.kv_cache_tokens


def test_what_does_not_fit_is_refused_by_how_much() -> None:
    planned = plan_deployment(config_of("vicuna-33b"), "A100-40GB")
    memory = planned.memory
    assert memory.missing == memory.total - 40 * 10**9 > 0
    refusal = planned.refusal()
    assert refusal is not None
    assert f"{memory.missing / 2**30:.2f} GiB a rank are missing" in refusal
    assert f"kv_cache_tokens of at most {memory.kv_tokens_that_fit}" in refusal
    assert "tensor_parallel_size 8" in refusal
    # which is true
    config = config_of("vicuna-33b")
    fewer = config.engine.model_copy(update={"kv_cache_tokens": memory.kv_tokens_that_fit - 8})
    assert plan_deployment(config.model_copy(update={"engine": fewer}), "A100-40GB").fits
    assert plan_deployment(config.model_copy(update={"tensor_parallel_size": 8}), "A100-40GB").fits
    with pytest.raises(ConfigError, match=r"at most 8, .* not 16"):
        plan_deployment(config_of("qwen3-32b").model_copy(update={"tensor_parallel_size": 16}), "H100-80GB")
    with pytest.raises(ConfigError, match=r"gpu must be one of A100-40GB, .*, not 'T4'"):
        plan_deployment(config, "T4")


def test_what_cannot_be_planned_is_named(tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text("applications: [{import_path: 'other:app'}]")
    with pytest.raises(ConfigError, match=r"other\.yaml is no Serve config with one application of goose_ray"):
        DeploymentFile(str(path))
    with pytest.raises(ConfigError, match=r"the config of 'org/unknown' is not here"):
        read_config("org/unknown")
    with pytest.raises(ConfigError, match=r"llama, mistral, qwen2, qwen3, not 'mixtral'"):
        Architecture.from_config({"model_type": "mixtral"})
    with pytest.raises(ConfigError, match="the model's config lacks 'num_attention_heads'"):
        Architecture.from_config({"model_type": "llama"})


def test_the_budget_is_the_best_of_all() -> None:
    probabilities = path_probabilities()
    taus = probabilities.cumsum()
    assert [float(taus[nodes - 1]) for nodes, _ in NODES_AND_TAU] == pytest.approx([tau for _, tau in NODES_AND_TAU])
    assert (probabilities[1:] <= probabilities[:-1]).all()

    def seconds(rows: int) -> float:
        return 0.01 + 1e-3 * max(0, rows - 24)

    for sequences in (1, 8):
        best = best_budget(sequences, 100, 512, seconds)
        of_budget = [sequences * float(taus[n - 1]) / seconds(sequences * n) for n in range(1, 61)]
        assert best.tokens_per_s >= max(of_budget) * (1 - 1e-6)
        assert best.budget == pytest.approx(24 / sequences)
        assert best.plain_tokens_per_s == pytest.approx(sequences / seconds(sequences))


def test_the_documentation_says_what_the_code_says() -> None:
    text = (DEPLOYMENTS.parent / "docs" / "plan.md").read_text(encoding="utf-8")
    assert plan_table() in text
    for name in FILES:
        parameters, kv_per_token = BY_HAND[name]
        assert f" = {kv_per_token:,} |" in text
        assert f" {2 * parameters / 2**30:.2f} |" in text


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
@pytest.mark.parametrize("model", known_models())
def test_the_parts_of_the_real_modules_make_up_the_whole(model: str, num_ranks: int) -> None:
    found = dry_run(read_config(model), num_ranks)
    layers = known_models()[model]["num_hidden_layers"]
    assert found.num_divided == 7 * layers + 1
    assert sum(found.of_ranks) > found.whole
    assert max(found.of_ranks) < found.whole * (1 / num_ranks + 0.08)


def test_the_command_prints_what_is_planned() -> None:
    path = str(DEPLOYMENTS / "llama-3-8b.yaml")
    shown = CliRunner().invoke(main, ["plan", path, "--gpu", "A100-40GB"])
    assert shown.exit_code == 0
    assert "kv is 98304 tokens of 131072 bytes" in shown.output
    found = json.loads(CliRunner().invoke(main, ["plan", path, "--gpu", "A100-40GB", "--json"]).stdout)
    assert found["fits"]
    assert [budget["sequences"] for budget in found["budgets"]] == [1, 8, 32]
    refused = CliRunner().invoke(main, ["plan", "qwen3-32b", "--gpu", "A100-40GB"])
    assert refused.exit_code == 1
    assert "GiB a rank are missing" in refused.output
    with pytest.raises(ConfigError, match="at most 8"):
        Architecture.from_config(read_config("Qwen/Qwen3-32B")).share(0, 9)
