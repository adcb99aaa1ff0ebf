"""The draft-verify-commit loop over recorded outputs, without a model: what a policy would have been worth.

A recording holds a prompt, the target's reply and its most likely next tokens at every position. Each step proposes a
tree, walks it along the recorded reply and harvests the positions committed; rejected nodes were never computed, so
their successors, which a live run would harvest as well, are missing. Knows nothing of what a step costs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from goose.errors import InvalidSnapshotError
from goose.npz import read_arrays
from goose.observation import Harvest, HarvestOrigin, TreeOutcome
from goose.speculator import Speculator
from goose.tree import FloatArray, IntArray, TokenTree
from goose.verify import walk

__all__ = ["Recording", "ReplayResult", "StepObserver", "replay"]

# Told the tree of each step and its accepted nodes, anchor excluded.
StepObserver = Callable[[TokenTree, IntArray], object]


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """One prompt and reply of a target."""

    name: str
    # [num_prompt] int64
    prompt_ids: IntArray
    # [num_output] int64
    output_ids: IntArray
    # [num_prompt + num_output, k] int64: the most likely tokens after each position, most likely first; the last
    # token's row may be missing, nothing is drafted behind it
    top_ids: IntArray
    # [num_prompt + num_output, k] float32
    top_probs: FloatArray
    # the kind of prompt, where the recording says it
    benchmark: str | None = None

    @classmethod
    def load(cls, path: Path) -> "Recording":
        """Reads an `.npz` with the arrays `prompt`, `output`, `top_ids`, `top_p` and perhaps a string `benchmark`.

        Raises InvalidSnapshotError naming the path and the array that is missing or of another shape.
        """
        arrays = read_arrays(path, ("prompt", "output", "top_ids", "top_p"), ("benchmark",))
        prompt, output, top_ids, top_probs = (arrays[name] for name in ("prompt", "output", "top_ids", "top_p"))
        for name, part in (("prompt", prompt), ("output", output)):
            if part.ndim != 1 or not len(part) or part.dtype.kind not in "iu":
                raise InvalidSnapshotError(f"{path}: {name} must be token ids, not {part.dtype} of shape {part.shape}")
        num_tokens = len(prompt) + len(output)
        if top_ids.ndim != 2 or top_ids.shape != top_probs.shape or len(top_ids) not in (num_tokens - 1, num_tokens):
            raise InvalidSnapshotError(
                f"{path}: top_ids and top_p must hold {num_tokens} rows, not shapes {top_ids.shape}, {top_probs.shape}"
            )
        return cls(
            name=path.stem,
            prompt_ids=prompt.astype(np.int64),
            output_ids=output.astype(np.int64),
            top_ids=top_ids.astype(np.int64),
            top_probs=top_probs.astype(np.float32),
            benchmark=str(arrays["benchmark"]) if "benchmark" in arrays else None,
        )


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Counts of one replayed reply."""

    committed: int
    steps: int
    # nodes verified, anchors included
    nodes: int
    # source -> (attempted, accepted) draft nodes
    by_source: Mapping[str, tuple[int, int]]

    @property
    def tau(self) -> float:
        """Mean acceptance length: committed tokens / steps, bonus included."""
        return self.committed / self.steps if self.steps else 0.0

    @property
    def nodes_per_step(self) -> float:
        return self.nodes / self.steps if self.steps else 0.0


def replay(
    recording: Recording,
    speculator: Speculator,
    *,
    stop_token_ids: frozenset[int] = frozenset(),
    harvest_prompt: bool = True,
    on_step: StepObserver | None = None,
) -> ReplayResult:
    """Replays one reply as a request of `speculator`, which keeps what it learned for the next.

    As in serving, the first step verifies a tree at the end of the prompt, and the prompt is harvested with it: where
    few requests share a step. `harvest_prompt=False` is what many get, whose policies can do without.
    """
    tokens = np.concatenate([recording.prompt_ids, recording.output_ids])
    num_prompt, num_tokens = len(recording.prompt_ids), len(tokens)
    previous = np.concatenate([[-1], tokens[:-1]])
    steps = nodes = 0
    by_source: dict[str, tuple[int, int]] = {}
    speculator.start_request(recording.name, recording.prompt_ids, stop_token_ids=stop_token_ids)
    # The last token of the prompt is the first tree's anchor, and the rows of trees are harvested anyway.
    harvested = 0 if harvest_prompt or speculator.needs_prompts else num_prompt - 1
    committed = num_prompt
    while committed < num_tokens:
        # With the bonus token, a draft of one token less than what is left can still be committed whole.
        depth = num_tokens - committed - 1
        tree = speculator.propose([recording.name], max_draft_depths=[depth], max_nodes=num_tokens)[0]
        path = walk(tree, partial(_recorded, tokens[committed:], tree))
        committed += len(path.token_ids)
        outcome = TreeOutcome(recording.name, tree, path.accepted_nodes, path.token_ids, int(path.token_ids[-1]))
        # The last committed token is the next anchor: its successors are not computed yet.
        rows = slice(harvested, committed - 1)
        positions = np.arange(harvested, committed - 1)
        origin = HarvestOrigin((recording.name,), np.zeros_like(positions), positions)
        harvest = Harvest(previous[rows], tokens[rows], recording.top_ids[rows], recording.top_probs[rows], origin)
        harvested = committed - 1
        steps += 1
        nodes += tree.num_nodes
        if on_step is not None:
            on_step(tree, path.accepted_nodes)
        for name, (attempted, accepted) in speculator.observe([outcome], harvest)[0].items():
            before = by_source.get(name, (0, 0))
            by_source[name] = (before[0] + attempted, before[1] + accepted)
    speculator.stop_request(recording.name)
    return ReplayResult(committed=num_tokens - num_prompt, steps=steps, nodes=nodes, by_source=by_source)


def _recorded(reply: IntArray, tree: TokenTree, node: int) -> int:
    """The token after a node of the verified path, of what is left of the reply."""
    return int(reply[tree.depths[node]])
