"""A request as the speculator sees it: what to draft for, not how it is sampled or served."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from goose.errors import RequestStateError
from goose.tree import IntArray

__all__ = ["DraftRequest", "RequestStates", "TreeQuery"]

StateT = TypeVar("StateT")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DraftRequest:
    """What sources and policies are told when a request starts. Its committed tokens start as the prompt."""

    request_id: str
    # [num_prompt] int64, at least one
    prompt_ids: IntArray
    # a draft never runs past one of these
    stop_token_ids: frozenset[int]
    # what was remembered for one salt is never drafted for another; None is a salt of its own
    cache_salt: str | None
    # nodes to verify a step, anchor included
    budget: int
    # the budget is only what to do where a policy cannot tell how many nodes are worth their time
    is_automatic: bool = False


@dataclass(frozen=True, slots=True)
class TreeQuery:
    """One sequence that wants a tree for the next step."""

    request_id: str
    # last committed token
    anchor_id: int
    # deepest draft node that could still be committed; 0: the anchor alone
    max_depth: int


class RequestStates(Generic[StateT]):
    """What one owner keeps for each live request. Every verb out of order raises, naming the request and the owner."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._states: dict[str, StateT] = {}

    def start(self, request_id: str, state: StateT) -> None:
        self.require_new(request_id)
        self._states[request_id] = state

    def require_new(self, request_id: str) -> None:
        if request_id in self._states:
            raise RequestStateError(f"request {request_id!r} was started already in {self._owner}")

    def stop(self, request_id: str) -> StateT:
        """Forgets the request and returns what was kept for it."""
        state = self[request_id]
        del self._states[request_id]
        return state

    def __getitem__(self, request_id: str) -> StateT:
        try:
            return self._states[request_id]
        except KeyError:
            raise RequestStateError(f"request {request_id!r} is not started in {self._owner}") from None

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._states

    def __iter__(self) -> Iterator[StateT]:
        return iter(self._states.values())
