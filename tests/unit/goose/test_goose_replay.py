"""Replays: the loop over a recording commits exactly the recorded reply, and lands where others measured."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from goose.observation import Harvest, TreeOutcome
from goose.policies.registry import POLICIES
from goose.replay import Recording, ReplayResult, replay
from goose.speculator import Speculator


def recording(prompt: list[int], output: list[int]) -> Recording:
    """The target is certain of its reply."""
    tokens = np.asarray(prompt + output, dtype=np.int64)
    following = np.append(tokens[1:], 0)
    return Recording(
        name="r",
        prompt_ids=tokens[: len(prompt)],
        output_ids=tokens[len(prompt) :],
        top_ids=np.stack([following, following + 1000], axis=1),
        top_probs=np.tile(np.asarray([0.9, 0.05], dtype=np.float32), (len(tokens), 1)),
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_the_whole_reply_is_committed_and_no_more(policy: str) -> None:
    rng = np.random.default_rng(0)
    prompt, output = rng.integers(0, 4, 30).tolist(), rng.integers(0, 4, 101).tolist()
    result = replay(recording(prompt, output), Speculator(policy=policy))
    assert result.committed == 101
    assert sum(accepted for _, accepted in result.by_source.values()) >= 101 - result.steps
    if policy == "autoregressive":
        assert (result.steps, result.nodes, result.tau, result.by_source) == (101, 101, 1.0, {})
    else:
        assert result.steps < 101


def test_a_copied_reply_takes_steps_of_a_chain_and_a_bonus() -> None:
    text = list(range(10, 43))
    # The prompt ends as it begins, and 30 tokens of it follow: two chains of ten and a bonus token, one of seven.
    result = replay(recording([*text, 10, 11, 12], text[3:]), Speculator(policy="chain"))
    assert (result.committed, result.steps, result.nodes) == (30, 3, 11 + 11 + 8)
    assert result.by_source == {"context": (27, 27)}
    assert result.tau == 10.0
    assert result.nodes_per_step == 10.0


def test_a_table_learns_from_the_harvest_of_the_prompt() -> None:
    cycle = [1, 2, 3, 4, 5, 6]
    # No n-gram repeats within the reply, but every pair of it was seen in the prompt.
    result = replay(recording([*cycle, 9, 1], [2, 3, 4]), Speculator(policy="goose"))
    assert result.steps == 2
    assert result.by_source["transitions"][1] == 1


@pytest.mark.parametrize(("policy", "learns"), [("anisotropic", False), ("goose", True)])
def test_a_prompt_without_rows_teaches_policies_that_can_do_without_nothing(policy: str, learns: bool) -> None:
    seen: list[Harvest | None] = []
    speculator = Speculator(policy=policy)
    observe = speculator.observe

    def noted(outcomes: Sequence[TreeOutcome], harvest: Harvest | None) -> list[dict[str, tuple[int, int]]]:
        seen.append(harvest)
        return observe(outcomes, harvest)

    speculator.observe = noted  # type: ignore[method-assign]
    replay(recording([1, 2, 3, 4, 5, 6], [2, 3, 4]), speculator, harvest_prompt=False)
    first = seen[0]
    assert first is not None
    assert first.origin is not None
    assert first.origin.positions[0] == (0 if learns else 5)
    assert sum(len(harvest.token_ids) for harvest in seen if harvest is not None) == (8 if learns else 3)


def test_nothing_replayed_is_no_speed() -> None:
    assert ReplayResult(committed=0, steps=0, nodes=0, by_source={}).tau == 0.0


# Pooled tau by kind of prompt, measured by an independent replay of the same recordings at budget 60.
REFERENCE = {
    "classeval": 12.3,
    "gsm8k": 2.64,
    "humaneval": 3.86,
    "mbpp": 1.65,
    "mt_bench": 3.13,
    "spec_bench_rag": 5.41,
    "spec_bench_summarization": 4.23,
    "spec_bench_translation": 3.51,
}


def pooled_tau(folder: Path, kind: str, policy: str) -> float:
    results = [replay(Recording.load(path), Speculator(policy=policy)) for path in sorted(folder.glob(f"{kind}_*.npz"))]
    assert results
    return sum(result.committed for result in results) / sum(result.steps for result in results)


@pytest.mark.parametrize("kind", REFERENCE)
def test_recordings_replay_to_the_acceptance_seen_elsewhere(shared_dir: Path, kind: str) -> None:
    folder = shared_dir / "data" / "recordings"
    goose = pooled_tau(folder, kind, "goose")
    assert goose == pytest.approx(REFERENCE[kind], rel=0.02)
    assert goose > pooled_tau(folder, kind, "chain")


def macro(folder: Path, policy: str, budget: int) -> tuple[float, float]:
    """Mean over the kinds of prompt of their pooled tau, and nodes per step; two replies a kind, served in turn."""
    speculator = Speculator(policy=policy, budget=budget)
    taus, steps, nodes = [], 0, 0
    for kind in REFERENCE:
        results = [replay(Recording.load(path), speculator) for path in sorted(folder.glob(f"{kind}_*.npz"))[:2]]
        taus.append(sum(r.committed for r in results) / sum(r.steps for r in results))
        steps += sum(r.steps for r in results)
        nodes += sum(r.nodes for r in results)
    return float(np.mean(taus)), nodes / steps


def test_anisotropic_gets_more_out_of_no_more_nodes_than_goose(shared_dir: Path) -> None:
    folder = shared_dir / "data" / "recordings"
    goose, goose_nodes = macro(folder, "goose", 60)
    anisotropic, nodes = macro(folder, "anisotropic", int(0.95 * goose_nodes))
    assert nodes <= goose_nodes
    assert anisotropic >= 1.1 * goose
