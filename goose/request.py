"""A request as the speculator sees it: what to draft for, not how it is sampled or served."""

from dataclasses import dataclass

from goose.tree import IntArray

__all__ = ["DraftRequest", "TreeQuery"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DraftRequest:
    """What sources and policies are told when a request starts. Its committed tokens start as the prompt."""

    request_id: str
    # [num_prompt] int64, at least one
    prompt_ids: IntArray
    # a draft never runs past one of these
    stop_token_ids: frozenset[int]
    # what is remembered for one salt is never drafted for another; None is a salt of its own
    cache_salt: str | None
    # nodes to verify a step, anchor included
    budget: int


@dataclass(frozen=True, slots=True)
class TreeQuery:
    """One sequence that wants a tree for the next step."""

    request_id: str
    # last committed token
    anchor_id: int
    # deepest draft node that could still be committed; 0: the anchor alone
    max_depth: int
