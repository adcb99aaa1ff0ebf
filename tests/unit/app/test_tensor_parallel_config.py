"""What of tensor parallelism is decided before there is a rank: sizes, places, and what cannot be."""

import re
from typing import Any

import pytest
from transformers import LlamaConfig

from goose_ray import placement
from goose_ray.app import build_app
from goose_ray.config import GooseConfig
from goose_ray.errors import ConfigError
from goose_ray.runner.divisibility import check_divisible


@pytest.fixture(autouse=True)
def _nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOSE_MODEL", raising=False)
    monkeypatch.delenv("GOOSE_TENSOR_PARALLEL_SIZE", raising=False)


def a_cluster(monkeypatch: pytest.MonkeyPatch, *nodes: dict[str, float]) -> None:
    monkeypatch.setattr(placement, "_nodes", lambda: list(nodes))


def test_the_environment_sets_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOSE_TENSOR_PARALLEL_SIZE", "4")
    assert GooseConfig.from_args({"tensor_parallel_size": 2}).tensor_parallel_size == 4
    for wrong in ("two", "-2", "1.5"):
        monkeypatch.setenv("GOOSE_TENSOR_PARALLEL_SIZE", wrong)
        with pytest.raises(ConfigError, match=f"GOOSE_TENSOR_PARALLEL_SIZE must be a whole number, not '{wrong}'"):
            GooseConfig.from_args({})
    monkeypatch.setenv("GOOSE_TENSOR_PARALLEL_SIZE", "0")
    with pytest.raises(ConfigError, match=r"tensor_parallel_size: .* not 0"):
        GooseConfig.from_args({})


@pytest.mark.parametrize(
    ("args", "nodes", "device"),
    [
        ({}, [{"CPU": 4}], "cpu"),
        ({}, [{"CPU": 4}, {"CPU": 8, "GPU": 2}], "cuda"),
        ({"device": "cpu"}, [{"CPU": 8, "GPU": 2}], "cpu"),
        # of a cluster that grows nobody knows what it will have
        ({"device": "cuda"}, [{"CPU": 4}], "cuda"),
    ],
)
def test_auto_takes_gpus_where_there_are_some(
    monkeypatch: pytest.MonkeyPatch, args: dict[str, Any], nodes: list[dict[str, float]], device: str
) -> None:
    a_cluster(monkeypatch, *nodes)
    assert placement.gang_device(GooseConfig.from_args({"tensor_parallel_size": 2, **args})) == device


def test_too_few_gpus_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    a_cluster(monkeypatch, {"CPU": 8, "GPU": 1}, {"CPU": 8, "GPU": 2})
    with pytest.raises(ConfigError, match="tensor_parallel_size 4 needs as many GPUs, the cluster has 3"):
        placement.gang_device(GooseConfig.from_args({"tensor_parallel_size": 4}))


FOUR = {"CPU": 4.0}
EIGHT_GPUS = {"CPU": 16.0, "GPU": 8.0}


@pytest.mark.parametrize(
    ("nodes", "size", "strategy", "has_place"),
    [
        ([FOUR], 2, "STRICT_PACK", True),
        ([{"CPU": 2.0}], 2, "STRICT_PACK", True),
        ([{"CPU": 1.0}], 2, "PACK", False),
        ([FOUR], 2, "STRICT_SPREAD", False),
        # one for the replica, and one for each rank
        ([FOUR, FOUR], 2, "STRICT_SPREAD", False),
        ([FOUR, FOUR, FOUR], 2, "STRICT_SPREAD", True),
        ([EIGHT_GPUS], 8, "STRICT_PACK", True),
        ([EIGHT_GPUS, EIGHT_GPUS], 16, "STRICT_PACK", False),
        ([EIGHT_GPUS, EIGHT_GPUS], 16, "SPREAD", True),
        ([{"CPU": 4.0, "GPU": 8.0}], 8, "PACK", True),
        # GPUs enough, but no CPU to go with them
        ([{"CPU": 0.5, "GPU": 8.0}], 8, "PACK", False),
    ],
)
def test_what_the_cluster_has_no_place_for_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    nodes: list[dict[str, float]],
    size: int,
    strategy: str,
    has_place: bool,
) -> None:
    """With `device: auto`; where a device is named the cluster may grow."""
    a_cluster(monkeypatch, *nodes)
    args = {"tensor_parallel_size": size, "tensor_parallel_strategy": strategy}
    device = "cuda" if any("GPU" in node for node in nodes) else "cpu"
    what = f"no place for tensor_parallel_size {size} with tensor_parallel_strategy {strategy}: it takes (CPU 1) for"
    if has_place:
        assert placement.gang_device(GooseConfig.from_args(args)) == device
    else:
        with pytest.raises(ConfigError, match=f"{re.escape(what)} .* or say device: {device} if the cluster will grow"):
            placement.gang_device(GooseConfig.from_args(args))
    assert placement.gang_device(GooseConfig.from_args({**args, "device": device})) == device
    assert (what in caplog.text) is not has_place


@pytest.mark.parametrize(
    ("nodes", "size", "device", "rank"),
    [
        ([{"CPU": 16.0}], 2, "cpu", {"CPU": 1.0}),
        ([{"CPU": 2.0}], 2, "cpu", {"CPU": 0.5}),
        ([{"CPU": 2.0}, {"CPU": 4.0}], 4, "cpu", {"CPU": 0.7}),
        ([{"CPU": 1.0}], 2, "cpu", {"CPU": 0.1}),
        ([{"CPU": 32.0, "GPU": 8.0}], 8, "cuda", {"CPU": 1.0, "GPU": 1.0}),
        ([], 2, "cpu", {"CPU": 1.0}),
    ],
)
def test_bundles_are_the_replica_s_and_one_a_rank(
    monkeypatch: pytest.MonkeyPatch, nodes: list[dict[str, float]], size: int, device: str, rank: dict[str, float]
) -> None:
    a_cluster(monkeypatch, *nodes)
    config = GooseConfig.from_args(
        {"tensor_parallel_size": size, "device": device, "tensor_parallel_strategy": "STRICT_PACK"}
    )
    assert placement.gang_placement(config) == {
        "placement_group_bundles": [{"CPU": 1.0}, *[rank] * size],
        "placement_group_strategy": "STRICT_PACK",
    }


def test_more_ranks_than_key_value_heads_are_refused() -> None:
    config = LlamaConfig(hidden_size=576, num_attention_heads=9, num_key_value_heads=3)
    check_divisible(config, 3)
    with pytest.raises(ConfigError, match=r"tensor_parallel_size must be at most 3, .*, not 4"):
        check_divisible(config, 4)
    with pytest.raises(ConfigError, match=r"must be at most 6, .*, not 8"):
        check_divisible(LlamaConfig(hidden_size=48, num_attention_heads=6), 8)


def test_build_app_refuses_before_there_is_a_replica() -> None:
    """The embedded model is on this machine, with three key-value heads."""
    with pytest.raises(ConfigError, match="tensor_parallel_size must be at most 3"):
        build_app({"tensor_parallel_size": 4, "device": "cpu"})
