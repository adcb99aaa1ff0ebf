"""How many replicas a load needs, and what a replica tells of its own."""

import math
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.serve.autoscaling_policy import _apply_autoscaling_config
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from goose_ray.config import EngineConfig
from goose_ray.engine.stats import EngineStats
from goose_ray.scaling.load_meter import LoadMeter
from goose_ray.scaling.policy import CapacityPolicy, Load, Targets, replicas_needed, targets_of

TARGETS = Targets()
POLICY = "goose_ray.scaling.policy:CapacityPolicy"
BUSY = Load(requests=10, finished_per_s=1, kv_use=0.1, tokens_per_s=100, capacity_tokens_per_s=100)
AMOUNTS = st.floats(0, 1e4)
LOADS = st.lists(
    st.builds(
        lambda running, waiting, finished, kv, tokens, capacity: Load(
            running + waiting, waiting, finished, kv, tokens, capacity
        ),
        *[AMOUNTS] * 3,
        st.floats(0, 1),
        *[AMOUNTS] * 2,
    ),
    min_size=1,
    max_size=5,
)


def needed(*loads: Load, queued: float = 0.0) -> float:
    return replicas_needed(loads, queued=queued, targets=TARGETS)


def test_work_is_told_by_the_measured_capacity() -> None:
    half = replace(BUSY, tokens_per_s=50)
    assert needed(BUSY) == pytest.approx(1 / 0.8)
    assert needed(half, half, half) == pytest.approx(1.5 / 0.8)
    # the same tokens, but more of them are accepted now
    assert needed(*[replace(half, capacity_tokens_per_s=200)] * 4) == pytest.approx(1 / 0.8)


def test_work_is_told_by_kv_where_that_is_scarcer() -> None:
    assert needed(*[replace(BUSY, tokens_per_s=1, kv_use=0.99)] * 2) == pytest.approx(2 * 0.99 / 0.9)


def test_what_waits_too_long_is_work() -> None:
    idle = replace(BUSY, tokens_per_s=10)
    # one is answered a second, so two have their turn in time
    assert needed(idle, queued=2) == needed(idle) == 1.0
    # whatever was measured, a replica that lets twelve wait does what it can
    assert needed(idle, queued=12) == pytest.approx((1 + 10 / 10) / 0.8)
    assert needed(replace(idle, requests=22, waiting=12)) == needed(idle, queued=12)


def test_without_requests_nothing_is_needed_and_with_one_something_is() -> None:
    assert needed(Load(capacity_tokens_per_s=100, tokens_per_s=80)) == 0.0
    assert needed(replace(BUSY, tokens_per_s=0, requests=1)) == 1.0
    assert needed(Load(), queued=1) >= 1.0


@given(LOADS, AMOUNTS, AMOUNTS)
def test_more_of_anything_never_needs_less(loads: list[Load], queued: float, more: float) -> None:
    first, *others = loads
    before = needed(*loads, queued=queued)
    assert needed(*loads, queued=queued + more) >= before
    for worse in (
        replace(first, tokens_per_s=first.tokens_per_s + more),
        replace(first, kv_use=first.kv_use + more),
        replace(first, requests=first.requests + more, waiting=first.waiting + more),
    ):
        assert needed(worse, *others, queued=queued) >= before


@given(LOADS, st.floats(1, 1e4))
def test_replicas_are_added_only_for_load_and_never_without_end(loads: list[Load], queued: float) -> None:
    calm = [replace(load, requests=load.requests - load.waiting, waiting=0.0) for load in loads]
    assert needed(*calm) <= len(calm) / min(TARGETS.utilization, TARGETS.kv_use)
    running = sum(load.requests - load.waiting for load in loads)
    waiting = queued + sum(load.waiting for load in loads)
    most = (1 + waiting / max(1.0, running)) * len(loads) / 0.8
    assert needed(*loads, queued=queued) <= max(1.0, most) * (1 + 1e-9)


def context(config: AutoscalingConfig, target: int, now: float, state: dict[str, Any], loads: list[Load]) -> Any:
    """As Serve's controller gives it, each replica's load twice: an older one, and the newest."""
    metrics: dict[str, dict[int, list[Any]]] = {}
    for number, load in enumerate(loads):
        for name, value in asdict(load).items():
            metrics.setdefault(name, {})[number] = [SimpleNamespace(value=1e9), SimpleNamespace(value=value)]
    return SimpleNamespace(
        current_num_replicas=target,
        target_num_replicas=target,
        total_num_requests=sum(load.requests for load in loads),
        total_queued_requests=0.0,
        raw_metrics=metrics,
        policy_state=state,
        current_time=now,
        config=config,
    )


def decisions(monkeypatch: pytest.MonkeyPatch, config: AutoscalingConfig, loads: list[Load], start: int) -> list[int]:
    """Serve's own delays and factors around the policy, one decision a second; every replica has the same load."""
    policy = _apply_autoscaling_config(CapacityPolicy())
    target, seen = start, []
    state: dict[str, Any] = {}
    for now, load in enumerate(loads):
        monkeypatch.setattr("ray.serve.autoscaling_policy.time.time", lambda now=now: float(now))
        target, state = policy(context(config, target, now, state, [load] * max(1, target)))
        target = max(config.min_replicas, min(config.max_replicas, target))
        seen.append(target)
    return seen


def test_a_burst_gets_a_second_replica_after_its_delay_and_loses_it_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = AutoscalingConfig(min_replicas=1, max_replicas=2, upscale_delay_s=5, downscale_delay_s=20)
    shared, little = replace(BUSY, tokens_per_s=60), replace(BUSY, tokens_per_s=10)
    # shorter than the delay; then one that stays
    load = [little] * 5 + [BUSY] * 4 + [little] * 5 + [BUSY] * 6 + [shared] * 30 + [little] * 30
    seen = decisions(monkeypatch, config, load, 1)
    assert seen[:19] == [1] * 19
    assert seen[19:50] == [2] * 31
    assert seen[50:69] == [2] * 19
    assert seen[70:] == [1] * 10


def test_nothing_is_kept_for_nobody_and_the_last_request_keeps_its_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    config = AutoscalingConfig(min_replicas=0, max_replicas=2, upscale_delay_s=0, downscale_delay_s=3)
    one, none = replace(BUSY, requests=1, tokens_per_s=1), replace(BUSY, requests=0, tokens_per_s=0)
    seen = decisions(monkeypatch, config, [one] * 10 + [none] * 6, 1)
    assert seen[:13] == [1] * 13
    assert seen[13:] == [0] * 3


def test_one_request_needs_one_replica_however_busy_it_keeps_it() -> None:
    config = AutoscalingConfig(min_replicas=1, max_replicas=9)

    def wanted(*seen: tuple[float, ...], queued: float = 0.0) -> float:
        """Replicas that work as fast as they can, with as many requests one moment after the other."""
        told = context(config, len(seen), 0.0, {}, [replace(BUSY, requests=1)] * len(seen))
        told.raw_metrics["requests"] = {
            number: [SimpleNamespace(value=value) for value in series] for number, series in enumerate(seen)
        }
        told.total_queued_requests = queued
        return CapacityPolicy()(told)[0]

    assert wanted((1, 0, 1)) == 1.0
    # one after the other, by another replica each time
    assert wanted((0, 1, 0, 1), (1, 0, 1, 0)) == 1.0
    assert wanted((1, 1), queued=1) > 1.0
    # by another one that was not there yet
    assert wanted((1, 1, 1, 1, 0), (1,)) == 1.0
    # and seen by both
    assert wanted((1, 1, 1, 0, 0), (0, 0, 1, 1, 1)) == 1.0
    # of two clients, one is between two requests
    assert wanted((2, 2, 1)) > 1.0


def test_what_waits_after_a_silence_needs_no_past() -> None:
    full = replace(BUSY, requests=3, waiting=2, finished_per_s=0.0, kv_use=1.0)
    told = context(AutoscalingConfig(min_replicas=1, max_replicas=9), 1, 0.0, {}, [full])
    told.raw_metrics["requests"] = {0: [SimpleNamespace(value=value) for value in (*[0] * 29, 3)]}
    assert CapacityPolicy()(told)[0] == 2.0


def test_why_the_number_changes_is_logged_now_and_then(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("goose_ray.scaling.policy.time.monotonic", lambda: now[0])
    caplog.set_level("INFO", "ray.serve")
    policy, config = CapacityPolicy(), AutoscalingConfig(min_replicas=1, max_replicas=4)
    for load in (replace(BUSY, tokens_per_s=10), BUSY, replace(BUSY, tokens_per_s=10), BUSY, replace(BUSY, waiting=3)):
        policy(context(config, 1, 0.0, {}, [load]))
    now[0] += 60
    policy(context(config, 1, 0.0, {}, [BUSY]))
    said, again = [record.getMessage() for record in caplog.records if "CapacityPolicy" in record.message]
    assert again == said
    assert "2 replicas instead of 1 for 100 of 100 tokens/s, 10 % of the KV slots, 10 requests" in said


def test_until_replicas_report_requests_are_counted() -> None:
    config = AutoscalingConfig(target_ongoing_requests=4, max_replicas=9)
    ctx = context(config, 1, 0.0, {}, [])
    ctx.total_num_requests = 12
    assert CapacityPolicy()(ctx)[0] == 3


def test_a_replica_that_starts_is_not_taken_for_one_that_is_not_needed() -> None:
    ctx = context(AutoscalingConfig(min_replicas=0), 1, 0.0, {}, [])
    ctx.current_num_replicas = 0
    assert CapacityPolicy()(ctx)[0] == 1


def test_serve_takes_the_policy_from_a_deployment_and_its_controller_needs_nothing_of_ours() -> None:
    policy = AutoscalingPolicy(policy_function=POLICY, policy_kwargs={"target_utilization": 0.5})
    made = policy.get_policy()(**policy.policy_kwargs)
    ctx = context(AutoscalingConfig(), 1, 0.0, {}, [BUSY])
    assert made(ctx)[0] == pytest.approx(2.0)
    # by value: pickled by name it would be short
    assert b"replicas_needed" in policy.get_serialized_policy_def()
    assert b"goose_ray.scaling.load_meter" not in policy.get_serialized_policy_def()


@pytest.mark.parametrize("name", ["target_utilization", "target_kv_use", "target_wait_s"])
@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, True, "0.8", None])
def test_a_target_that_cannot_be_met_is_named(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{name} must be above 0, not {value!r}"):
        targets_of({name: value})


def test_targets_that_cannot_be_do_not_stop_serve_s_controller(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="target_load must be one of target_utilization, "):
        targets_of({"target_load": 1})
    policies = [CapacityPolicy(), CapacityPolicy(target_load=1), CapacityPolicy(target_wait_s=-1)]
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    ctx = context(AutoscalingConfig(), 2, 0.0, {}, [BUSY, BUSY])
    assert [policy(ctx)[0] for policy in policies] == [2 / 0.8] * 3


def test_what_fails_in_the_policy_leaves_the_replicas_that_there_are(caplog: pytest.LogCaptureFixture) -> None:
    policy, config = CapacityPolicy(), AutoscalingConfig(max_replicas=9)
    sound = context(config, 3, 0.0, {}, [BUSY] * 3)
    unlike = context(config, 3, 0.0, {}, [replace(BUSY, kv_use=math.inf, tokens_per_s=math.nan)] * 3)
    strange = context(config, 3, 0.0, {}, [BUSY] * 3)
    strange.raw_metrics["tokens_per_s"][1] = [SimpleNamespace(value="many")]
    older = context(config, 3, 0.0, {}, [])
    del older.raw_metrics
    for broken in (strange, older):
        caplog.clear()
        # whatever Serve makes of it, ten times a second
        assert [_apply_autoscaling_config(policy)(broken)[0] for _ in range(20)] == [3] * 20
        assert ["stays at 3" in record.message for record in caplog.records] == [True]
        assert policy(sound)[0] == pytest.approx(3 / 0.8)
    assert policy(unlike)[0] == pytest.approx(3 / 0.8)


def test_a_replica_that_has_not_told_its_load_is_not_taken_for_idle() -> None:
    policy, config = CapacityPolicy(), AutoscalingConfig(max_replicas=9)
    ctx = context(config, 4, 0.0, {}, [replace(BUSY, tokens_per_s=20)] * 3)
    assert policy(ctx)[0] == 4
    ctx.current_num_replicas = 3
    assert policy(ctx)[0] == 1
    # it may be that more are needed all the same
    full = context(config, 3, 0.0, {}, [replace(BUSY, waiting=20, requests=30)] * 2)
    assert policy(full)[0] > 3


class Replica:
    """Counters of an engine whose step of r rows takes `step_s + row_s * r`."""

    def __init__(self, step_s: float, row_s: float) -> None:
        self.step_s, self.row_s = step_s, row_s
        self.now_s = 0.0
        self.stats = EngineStats(kv_slots_total=1000)

    def run(self, steps: int, *, sequences: int, nodes: int = 1, tau: int = 1, prompt_rows: int = 0) -> EngineStats:
        seconds = steps * (self.step_s + self.row_s * (sequences * nodes + prompt_rows))
        before = self.stats
        self.now_s += seconds
        self.stats = replace(
            before,
            num_requests_running=sequences,
            kv_slots_used=10 * sequences,
            num_steps=before.num_steps + steps,
            num_rows=before.num_rows + steps * (sequences * nodes + prompt_rows),
            num_trees=before.num_trees + steps * sequences,
            num_draft_tokens=before.num_draft_tokens + steps * sequences * (nodes - 1),
            generation_tokens=before.generation_tokens + steps * sequences * tau,
            step_seconds=before.step_seconds + seconds,
        )
        return self.stats


def measured(replica: Replica, config: EngineConfig, *runs: dict[str, int]) -> Load:
    meter = LoadMeter(config)
    load = meter.measure(replica.stats, replica.now_s)
    assert load == Load()
    for run in runs:
        load = meter.measure(replica.run(**run), replica.now_s)
    return load


def test_capacity_is_that_of_a_full_batch_whatever_runs() -> None:
    config = EngineConfig(max_running_requests=16)
    sizes = [{"steps": 300, "sequences": n} for n in (1, 3, 2, 4)]
    load = measured(Replica(0.02, 0.001), config, *sizes)
    assert load.capacity_tokens_per_s == pytest.approx(16 / 0.036, rel=0.02)
    assert load.tokens_per_s == pytest.approx(4 / 0.024, rel=0.02)
    assert load.requests == 4


def test_capacity_follows_acceptance() -> None:
    config = EngineConfig(max_running_requests=16)
    sizes = [{"steps": 50, "sequences": n, "nodes": 4, "tau": 1} for n in (1, 3, 2, 4)]
    accepted = [{**size, "tau": 3} for size in sizes]
    poor, good = (measured(Replica(0.02, 0.0001), config, *runs) for runs in (sizes, accepted))
    assert good.capacity_tokens_per_s == pytest.approx(16 * 3 / (0.02 + 64 * 0.0001), rel=0.02)
    # trees that bring nothing would be left out
    assert poor.capacity_tokens_per_s == pytest.approx(16 / (0.02 + 16 * 0.0001), rel=0.02)


def test_prompts_take_their_part_of_the_capacity() -> None:
    config = EngineConfig(max_running_requests=16)
    sizes = [{"steps": 50, "sequences": n, "prompt_rows": 40 * n} for n in (1, 3, 2, 4)]
    load = measured(Replica(0.02, 0.001), config, *sizes)
    # 16 sequences with 41 rows each: more than a batch holds
    assert load.capacity_tokens_per_s == pytest.approx(16 / (0.02 * 656 / 512 + 0.656), rel=0.05)


def test_one_size_of_step_is_enough_to_guess() -> None:
    load = measured(Replica(0.05, 0.0), EngineConfig(max_running_requests=4), {"steps": 50, "sequences": 1})
    assert 1 / 0.05 < load.capacity_tokens_per_s <= 4 / 0.05


def test_who_does_nothing_says_so_and_remembers_what_it_can() -> None:
    replica, meter = Replica(0.02, 0.001), LoadMeter(EngineConfig())
    meter.measure(replica.stats, 0.0)
    before = meter.measure(replica.run(100, sequences=4), replica.now_s)
    replica.stats = replace(replica.stats, num_requests_running=0, kv_slots_used=0)
    for _ in range(4):
        replica.now_s += 2.0
        load = meter.measure(replica.stats, replica.now_s)
    assert (load.tokens_per_s, load.requests) == (0.0, 0.0)
    assert load.capacity_tokens_per_s == pytest.approx(before.capacity_tokens_per_s)


# What a clock can tell apart from nothing.
_TICK_S = 1e-9


@given(
    st.just(0.0) | st.floats(_TICK_S, 1),
    st.just(0.0) | st.floats(_TICK_S, 0.1),
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 32), st.integers(1, 16), st.integers(0, 512)), max_size=8),
)
def test_capacities_are_numbers_whatever_was_seen(
    step_s: float, row_s: float, runs: list[tuple[int, int, int, int]]
) -> None:
    replica, meter = Replica(step_s, row_s), LoadMeter(EngineConfig())
    for steps, sequences, nodes, prompt_rows in runs:
        stats = replica.run(steps, sequences=sequences, nodes=nodes, prompt_rows=prompt_rows)
        load = meter.measure(stats, replica.now_s)
        assert all(0 <= value < float("inf") for value in asdict(load).values())
