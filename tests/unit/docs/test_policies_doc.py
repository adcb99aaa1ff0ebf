"""docs/policies.md: names every policy, and its example is a policy that keeps all contracts."""

import re
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from goose.observation import Harvest, TreeOutcome
from goose.policies.registry import POLICIES
from goose.speculator import Speculator
from goose.verify import walk

DOC = (Path(__file__).parents[3] / "docs" / "policies.md").read_text(encoding="utf-8")
POLICY, USE = re.findall(r"```python\n(.*?)```", DOC, flags=re.DOTALL)
STOP = 4


def example() -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(POLICY, names)
    return names


def test_every_policy_has_its_row() -> None:
    assert sorted(re.findall(r"^\| `([a-z]+)` \|", DOC, flags=re.MULTILINE)) == sorted(POLICIES)
    assert {name for name in POLICIES if f"- `{name}`:" not in DOC} == {"autoregressive"}


def test_the_example_runs_and_prints_what_it_says(capsys: Any) -> None:
    exec(USE, example())
    [expected] = re.findall(r"# (\[.*\])\n", USE)
    assert capsys.readouterr().out == f"{expected}\n"


def reply_after(text: list[int]) -> int:
    return sum(token * weight for token, weight in zip(text[-2:], (1, 2), strict=False)) % 5


@settings(deadline=None, max_examples=60)
@given(
    prompt=st.lists(st.integers(0, 3), min_size=1, max_size=20),
    budget=st.integers(1, 12),
    depth=st.integers(0, 8),
    max_nodes=st.integers(1, 12),
)
def test_the_examples_trees_keep_to_the_limits_and_change_nothing(
    prompt: list[int], budget: int, depth: int, max_nodes: int
) -> None:
    builders = {**POLICIES, "comb": example()["CombPolicy"]}
    speculator = Speculator(policy="comb", budget=budget, builders=builders, harvest_k=3)
    speculator.start_request("r", prompt, stop_token_ids=[STOP])
    text = list(prompt)
    for _ in range(8):
        [tree] = speculator.propose(["r"], max_draft_depths=[depth], max_nodes=max_nodes)
        assert tree.num_nodes <= min(budget, max_nodes)
        assert tree.depths.max() <= depth
        assert STOP not in tree.token_ids[1:].tolist()
        drafts = [tree.token_ids[tree.path_to(node)].tolist() for node in range(tree.num_nodes)]
        replies = [reply_after([*text, *draft]) for draft in drafts]
        path = walk(tree, replies.__getitem__)
        for token in path.token_ids.tolist():
            assert token == reply_after(text)
            text.append(token)
        row = Harvest(
            previous_ids=np.asarray(text[-2:-1]),
            token_ids=np.asarray(text[-1:]),
            top_ids=np.asarray([[reply_after(text), 0, STOP]]),
            top_probs=np.asarray([[0.7, 0.2, 0.1]], dtype=np.float32),
        )
        outcome = TreeOutcome("r", tree, path.accepted_nodes, path.token_ids, int(path.token_ids[-1]))
        speculator.observe([outcome], row)
    speculator.stop_request("r")
