"""The draft-verify-commit loop over recorded outputs, without a model: what a policy would have been worth.

A recording holds a prompt, the target's reply and its most likely next tokens at every position. Each step proposes a
tree, walks it along the recorded reply and harvests the positions committed; rejected nodes were never computed, so
their successors, which a live run would harvest as well, are missing. Knows nothing of what a step costs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from goose.observation import Harvest, HarvestOrigin, TreeOutcome
from goose.speculator import Speculator
from goose.tree import FloatArray, IntArray, TokenTree
from goose.verify import walk

__all__ = ["Recording", "ReplayResult", "replay"]


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """One prompt and reply of a target."""

    name: str
    # [num_prompt] int64
    prompt_ids: IntArray
    # [num_output] int64
    output_ids: IntArray
    # [num_prompt + num_output, k] int64: the most likely tokens after each position, most likely first
    top_ids: IntArray
    # [num_prompt + num_output, k] float32
    top_probs: FloatArray

    @classmethod
    def load(cls, path: Path) -> "Recording":
        """Reads an `.npz` with the arrays `prompt`, `output`, `top_ids` and `top_p`."""
        with np.load(path, allow_pickle=False) as arrays:
            return cls(
                name=path.stem,
                prompt_ids=arrays["prompt"].astype(np.int64),
                output_ids=arrays["output"].astype(np.int64),
                top_ids=arrays["top_ids"].astype(np.int64),
                top_probs=arrays["top_p"].astype(np.float32),
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
    recording: Recording, speculator: Speculator, *, stop_token_ids: frozenset[int] = frozenset()
) -> ReplayResult:
    """Replays one reply as a request of `speculator`, which keeps what it learned for the next.

    As in serving, the first step verifies a tree at the end of the prompt, and the prompt is harvested with it.
    """
    tokens = np.concatenate([recording.prompt_ids, recording.output_ids])
    num_prompt, num_tokens = len(recording.prompt_ids), len(tokens)
    previous = np.concatenate([[-1], tokens[:-1]])
    steps = nodes = 0
    by_source: dict[str, tuple[int, int]] = {}
    speculator.start_request(recording.name, recording.prompt_ids, stop_token_ids=stop_token_ids)
    harvested, committed = 0, num_prompt
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
        for name, (attempted, accepted) in speculator.observe([outcome], harvest)[0].items():
            before = by_source.get(name, (0, 0))
            by_source[name] = (before[0] + attempted, before[1] + accepted)
    speculator.stop_request(recording.name)
    return ReplayResult(committed=num_tokens - num_prompt, steps=steps, nodes=nodes, by_source=by_source)


def _recorded(reply: IntArray, tree: TokenTree, node: int) -> int:
    """The token after a node of the verified path, of what is left of the reply."""
    return int(reply[tree.depths[node]])
