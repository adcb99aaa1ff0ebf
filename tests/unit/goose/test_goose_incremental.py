"""A step costs the same however long the text is: counted in executed lines of the library, not in seconds."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import goose
from goose.observation import Harvest, HarvestOrigin, TreeOutcome
from goose.speculator import Speculator

LIBRARY = str(Path(goose.__file__).parent)
# So short that even in the shorter text every n-gram occurs more often than is looked at.
PERIOD = 6
# `anisotropic` runs as machine code, whose lines cannot be counted.
POLICIES = ["balanced", "chain", "goose", "recycling", "suffix"]
STEPS = 20


class LineCounter:
    """Counts executed lines of the library, by `sys.settrace`."""

    def __init__(self) -> None:
        self.num_lines = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> "LineCounter | None":
        if event == "line":
            self.num_lines += 1
        return self if frame.f_code.co_filename.startswith(LIBRARY) else None

    def __enter__(self) -> "LineCounter":
        self._before = sys.gettrace()
        sys.settrace(self)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)


def harvest(tokens: list[int], first: int) -> Harvest:
    """Rows of the tokens from `first` on, each followed by the next of the period and three others."""
    rows = np.asarray(tokens[first:])
    ids = np.stack([(rows + 1) % PERIOD, rows + 100, rows + 200, rows + 300], axis=1)
    positions = np.arange(first, len(tokens))
    return Harvest(
        previous_ids=np.asarray([-1, *tokens])[first:-1],
        token_ids=rows,
        top_ids=ids,
        top_probs=np.tile(np.asarray([0.6, 0.2, 0.1, 0.05], dtype=np.float32), (len(rows), 1)),
        origin=HarvestOrigin(("r",), np.zeros_like(positions), positions),
    )


def lines_of_steps(policy: str, context: int) -> int:
    """Of `STEPS` steps that each commit two tokens, behind a text of `context` tokens."""
    tokens = [place % PERIOD for place in range(context)]
    speculator = Speculator(policy=policy)
    speculator.start_request("r", tokens)
    speculator.observe([], harvest(tokens, 0))
    # The first step may settle what was put off until it.
    with LineCounter() as counter:
        for _ in range(STEPS):
            [tree] = speculator.propose(["r"], max_draft_depths=[30], max_nodes=60)
            committed = [(tokens[-1] + 1) % PERIOD, (tokens[-1] + 2) % PERIOD]
            tokens += committed
            accepted = np.flatnonzero((tree.parents == 0) & (tree.token_ids == committed[0]))[:1].astype(np.int64)
            outcome = TreeOutcome("r", tree, accepted, np.asarray(committed), committed[1])
            speculator.observe([outcome], harvest(tokens, len(tokens) - 2))
    return counter.num_lines


@pytest.mark.parametrize("policy", POLICIES)
def test_a_step_behind_a_long_text_runs_no_more_lines_than_behind_a_short_one(policy: str) -> None:
    short, long = lines_of_steps(policy, 1024), lines_of_steps(policy, 16 * 1024)
    assert short > 100 * STEPS / 2
    assert long <= 1.05 * short


@pytest.mark.parametrize("policy", POLICIES)
def test_a_long_prompt_costs_as_much_a_token_as_a_short_one(policy: str) -> None:
    lines = []
    for context in (1024, 16 * 1024):
        speculator = Speculator(policy=policy)
        with LineCounter() as counter:
            speculator.start_request("r", [place % PERIOD for place in range(context)])
        lines.append(counter.num_lines / context)
    assert lines[1] <= 1.01 * lines[0]
