"""What the speculator is told after a step: harvested successors, and what became of each tree."""

from dataclasses import dataclass

import numpy as np

from goose.tree import FloatArray, IntArray, TokenTree

__all__ = ["Harvest", "HarvestOrigin", "TreeOutcome"]


@dataclass(frozen=True, slots=True, eq=False)
class HarvestOrigin:
    """Where harvested rows stand in the texts of their requests."""

    request_ids: tuple[str, ...]
    # [num_rows] int64: index into `request_ids`
    requests: IntArray
    # [num_rows] int64: the row's place among its request's committed tokens, prompt included, those that the step
    # commits too; -1: a draft node that was not committed
    positions: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Harvest:
    """The target's most likely next tokens at rows of one forward (prompt positions, accepted and rejected nodes).

    Rows are in the order in which they were computed; `top_probs` are softmax scores at temperature 1. Raises
    ValueError for arrays that do not fit each other.
    """

    # [num_rows] int64; the token before, -1 where there is none
    previous_ids: IntArray
    # [num_rows] int64
    token_ids: IntArray
    # [num_rows, k] int64, most likely first
    top_ids: IntArray
    # [num_rows, k] float32
    top_probs: FloatArray
    # None: not known
    origin: HarvestOrigin | None = None

    def __post_init__(self) -> None:
        rows, top = self.token_ids.shape, self.top_ids.shape
        if self.previous_ids.shape != rows or self.top_probs.shape != top or top[:1] != rows or len(top) != 2:
            raise ValueError(
                f"a harvest needs previous_ids and token_ids [num_rows], top_ids and top_probs [num_rows, k], not "
                f"{list(self.previous_ids.shape)}, {list(rows)}, {list(top)} and {list(self.top_probs.shape)}"
            )


@dataclass(frozen=True, slots=True, eq=False)
class TreeOutcome:
    """What one sequence's tree came to.

    *accepted tokens*: draft tokens on the verified path that were committed. *bonus token*: the target's own token
    after the last accepted one. `committed_ids` are the accepted tokens and, unless a stop condition inside the
    accepted run ended the request before it, the bonus token.
    """

    request_id: str
    tree: TokenTree
    # [num_accepted] int64: node indices of the committed part of the verified path, anchor excluded
    accepted_nodes: IntArray
    # [num_committed] int64
    committed_ids: IntArray
    # the target's own choice at the last committed path node: the bonus token, committed or not
    bonus_id: int
    # The first so many of `committed_ids` were committed by steps before, one a step, without a tree, and are told of
    # now: they are text, and nothing else need be learned from them.
    num_earlier: int = 0

    @property
    def chosen_ids(self) -> IntArray:
        """[num_accepted + 1] int64: what the target chose at each node of the verified path."""
        own = self.committed_ids[self.num_earlier :]
        return own if len(own) > len(self.accepted_nodes) else np.append(own, self.bonus_id)
