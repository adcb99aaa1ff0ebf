"""Keeps the memory, the live requests and the trees of the current step, and calls the compiled steps on them.

What is shared: rows and pooled outputs among requests of one `cache_salt` (None is one of its own), the weights of the
model among all; weights hold no text. A request's prompt is seen by itself alone.
"""

from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from goose.allocation import kept_trees
from goose.anisotropic.adaptation import group_offsets, starting_values
from goose.anisotropic.archive import UNSALTED, TextArchive
from goose.anisotropic.budget import TreeLimits
from goose.anisotropic.builders import TreeBuilders
from goose.anisotropic.export import exported
from goose.anisotropic.harvest import add_rows
from goose.anisotropic.known_texts import KnownText, KnownTexts
from goose.anisotropic.steps import commit_tokens, learn_paths, move_text
from goose.anisotropic.successors import new_successors
from goose.anisotropic.weights import Weights
from goose.anisotropic.workspace import (
    TAU,
    TEMPERATURE,
    Memory,
    Requests,
    Workspace,
    new_requests,
)
from goose.jit import writable
from goose.observation import Harvest, HarvestOrigin, TreeOutcome
from goose.request import DraftRequest, RequestStates, TreeQuery
from goose.tree import IntArray, TokenTree
from goose.tuning import TreeTuning

__all__ = ["Drafter"]

# Room for output in a new segment; a text that outgrows its segment moves to one of twice the size.
_MIN_RESERVE = 512
# Prompt kept in front of a past output: as much as a match may be compared backwards.
_KEPT_PROMPT = 96


@dataclass(slots=True)
class _Request:
    slot: int
    segment_size: int
    cache_salt: str | None
    # [num_stop_ids] int64
    stop_ids: IntArray


class Drafter:
    """`max_positions`: tokens of text kept, live and past; live requests that need more get more.

    `learning_rate` 0 freezes the weights. `num_threads` build trees. Raises RequestStateError on a verb out of order.
    """

    def __init__(self, weights: Weights, *, max_positions: int, learning_rate: float, num_threads: int = 1) -> None:
        self._archive = TextArchive(max_positions)
        self._memory = Memory(self._archive.texts, new_successors(), weights.values.copy(), weights.squares.copy())
        self._learning_rate = learning_rate
        self._slots = new_requests(8)
        self._free_slots = list(range(8))
        self._builders = TreeBuilders(num_threads)
        self._work = self._builders.workspaces[0]
        self._requests = RequestStates[_Request]("the drafter")
        self._slot_of: dict[str, int] = {}
        self._num_owners = 0
        # [NUM_ADAPTED]: of requests to come
        self._start = starting_values(TreeTuning())

    @property
    def num_bytes(self) -> dict[str, int]:
        """Bytes set aside, by what for. The system gives memory only for pages that were written."""
        successors = self._memory.successors
        return {
            "texts": sum(array.nbytes for array in self._memory.texts),
            "token_rows": successors.tokens.nbytes + successors.token_means.nbytes,
            "pair_rows": successors.pairs.nbytes + successors.pair_means.nbytes,
            "triple_rows": successors.triples.nbytes,
            "usual_tokens": sum(array.nbytes for array in successors.usual),
        }

    @property
    def workspace(self) -> Workspace:
        """What the last tree was made from, that of this thread; to be read, and gone with the next."""
        return self._work

    @property
    def weights(self) -> Weights:
        """A copy of what has been learned so far."""
        return Weights(self._memory.weights.copy(), self._memory.squares.copy())

    def taus(self, request_ids: Sequence[str]) -> NDArray[np.float64]:
        """[num_requests] float64: moving average of the tokens that each request commits a step."""
        taus: NDArray[np.float64] = self._slots.adapted[[self._requests[name].slot for name in request_ids], TAU]
        return taus

    def tune(self, tuning: TreeTuning) -> None:
        """What requests start with from now on; those that run go on adapting what they have."""
        self._start = starting_values(tuning)

    def adaptation(self, request_ids: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What the next trees' probabilities are made with: [num_requests, num_groups] log-odds offsets by
        `goose.tuning_counts.GROUPS`, [num_requests] temperatures.
        """
        adapted = self._slots.adapted[[self._requests[name].slot for name in request_ids]]
        return group_offsets(adapted), adapted[:, TEMPERATURE]

    def start_request(self, request: DraftRequest) -> None:
        self._requests.require_new(request.request_id)
        num_prompt = len(request.prompt_ids)
        size = num_prompt + max(_MIN_RESERVE, num_prompt // 2)
        start, scope = self._open(size, request.cache_salt)
        if not self._free_slots:
            self._add_slots()
        slot, slots = self._free_slots.pop(), self._slots
        slots.starts[slot], slots.ends[slot], slots.output_starts[slot] = start, start - 1, start + num_prompt
        slots.owners[slot], slots.scopes[slot] = self._new_owner(), scope
        slots.adapted[slot], slots.recent[slot] = self._start, 0
        stop_ids = np.array(sorted(request.stop_token_ids), dtype=np.int64)
        self._requests.start(request.request_id, _Request(slot, size, request.cache_salt, stop_ids))
        self._slot_of[request.request_id] = slot
        self._commit(np.array([slot]), [np.array(request.prompt_ids, dtype=np.int64)])

    def propose(
        self, queries: Sequence[TreeQuery], limits: TreeLimits, max_nodes: int | None, source_bits: IntArray
    ) -> list[TokenTree]:
        """One tree a query; of all trees together the `max_nodes` likeliest nodes (None: all).

        `source_bits` [8] translates the bits of `goose.anisotropic.candidates` to those of `TokenTree.sources`.
        """
        states = [self._requests[query.request_id] for query in queries]
        trees, path_probs = self._builders.build(
            self._memory,
            self._slots,
            np.array([state.slot for state in states], dtype=np.int64),
            limits,
            np.array([query.max_depth for query in queries], dtype=np.int64),
            [state.stop_ids for state in states],
            source_bits,
        )
        return trees if max_nodes is None or len(path_probs) <= max_nodes else _cut(trees, path_probs, max_nodes)

    def observe(self, outcomes: Sequence[TreeOutcome], harvest: Harvest | None) -> None:
        if outcomes:
            states = [self._requests[outcome.request_id] for outcome in outcomes]
            slots = np.array([state.slot for state in states], dtype=np.int64)
            if any(outcome.num_earlier for outcome in outcomes):
                # One token a step, which says nothing of how many a step with a tree commits.
                taus = self._slots.adapted[slots, TAU]
                self._append(states, slots, [outcome.committed_ids[: outcome.num_earlier] for outcome in outcomes])
                self._slots.adapted[slots, TAU] = taus
            if self._learning_rate > 0:
                self._learn(slots, [outcome.chosen_ids for outcome in outcomes])
            self._append(states, slots, [outcome.committed_ids[outcome.num_earlier :] for outcome in outcomes])
        if harvest is not None and len(harvest.token_ids):
            self._add_rows(harvest)

    def stop_request(self, request_id: str) -> None:
        """Forgets the request. Its output, and the rows harvested for it, stay for others of its salt."""
        state = self._requests.stop(request_id)
        self._forget_found()
        del self._slot_of[request_id]
        start, end = int(self._slots.starts[state.slot]), int(self._slots.ends[state.slot])
        output_start = int(self._slots.output_starts[state.slot])
        if end < output_start:
            self._archive.discard(start, state.segment_size, state.cache_salt)
        else:
            kept = slice(max(start, output_start - _KEPT_PROMPT), end + 1)
            self._archive.retire(start, state.segment_size, state.cache_salt, kept=kept)
        self._free_slots.append(state.slot)

    def remember(self, texts: Iterable[KnownText]) -> None:
        """As if each had been a request without a salt that has ended. Teaches the weights nothing."""
        for text in texts:
            name = f"known text {self._num_owners}"
            self.start_request(
                DraftRequest(
                    request_id=name,
                    prompt_ids=text.token_ids[: text.num_prompt],
                    stop_token_ids=frozenset(),
                    cache_salt=None,
                    budget=1,
                )
            )
            state, output = self._requests[name], text.token_ids[text.num_prompt :]
            if len(output):
                self._append([state], np.array([state.slot]), [output])
            # Behind the last token nothing is known to have been written.
            places = np.arange(len(text.token_ids) - 1)
            previous = np.concatenate([[-1], text.token_ids[:-2]])[places]
            origin = HarvestOrigin((name,), np.zeros_like(places), places)
            self._add_rows(
                Harvest(previous, text.token_ids[places], text.top_ids[places], text.top_probs[places], origin)
            )
            self.stop_request(name)

    def known(self, max_tokens: int) -> KnownTexts:
        """The newest texts of finished requests without a salt, for `remember` elsewhere; none of any other salt."""
        return exported(self._archive.texts, self._archive.past(None), max_tokens)

    def _learn(self, slots: IntArray, chosen: Sequence[IntArray]) -> None:
        tokens = np.concatenate(chosen, dtype=np.int64)
        learn_paths(self._memory, self._slots, self._work, slots, tokens, _bounds(chosen), self._learning_rate)

    def _append(self, states: Sequence[_Request], slots: IntArray, token_ids: Sequence[IntArray]) -> None:
        self._make_room(states, slots, token_ids)
        self._commit(slots, token_ids)

    def _commit(self, slots: IntArray, token_ids: Sequence[IntArray]) -> None:
        self._forget_found()
        commit_tokens(self._memory, self._slots, slots, np.concatenate(token_ids, dtype=np.int64), _bounds(token_ids))

    def _make_room(self, states: Sequence[_Request], slots: IntArray, token_ids: Sequence[IntArray]) -> None:
        """Moves texts that their segments cannot hold any longer."""
        lengths = (self._slots.ends[slots] + 1 - self._slots.starts[slots]).tolist()
        for state, length, tokens in zip(states, lengths, token_ids, strict=True):
            length += len(tokens)
            if length > state.segment_size:
                self._move(state, length)

    def _move(self, state: _Request, length: int) -> None:
        """To a segment of room for twice the length."""
        start, old_size, state.segment_size = int(self._slots.starts[state.slot]), state.segment_size, 2 * length
        moved, _ = self._open(state.segment_size, state.cache_salt)
        move_text(self._memory, self._slots, state.slot, moved, self._new_owner())
        self._archive.discard(start, old_size, state.cache_salt)

    def _add_rows(self, harvest: Harvest) -> None:
        num_rows = len(harvest.token_ids)
        origin = harvest.origin
        if origin is None:
            slots = np.full(num_rows, -1, dtype=np.int64)
            positions = slots
        else:
            slots = np.array([self._slot_of.get(name, -1) for name in origin.request_ids], dtype=np.int64)
            slots = slots[origin.requests]
            positions = writable(origin.positions, np.int64)
        add_rows(
            self._memory,
            self._slots,
            self._work,
            slots,
            positions,
            writable(harvest.token_ids, np.int64),
            writable(harvest.previous_ids, np.int64),
            writable(harvest.top_ids, np.int64),
            writable(harvest.top_probs, np.float32),
            # A row of unknown origin may be anyone's; it is nobody's while there are salts to keep apart.
            0 if origin is not None or self._archive.is_salted else UNSALTED,
        )

    def _open(self, size: int, cache_salt: str | None) -> tuple[int, int]:
        self._forget_found()
        opened = self._archive.open(size, cache_salt)
        self._memory = self._memory._replace(texts=self._archive.texts)
        return opened

    def _forget_found(self) -> None:
        """Before any text changes: what was found in it would be read in another."""
        self._slots.found[:, 0] = 0

    def _new_owner(self) -> int:
        self._num_owners += 1
        return self._num_owners

    def _add_slots(self) -> None:
        count = len(self._slots.starts)
        more = new_requests(2 * count)
        for name in Requests._fields:
            getattr(more, name)[:count] = getattr(self._slots, name)
        self._slots, self._free_slots = more, list(range(count, 2 * count))


def _bounds(parts: Sequence[Sized]) -> IntArray:
    """[len(parts) + 1]: where each part begins in all of them together."""
    return np.cumsum([0] + [len(part) for part in parts])


def _cut(trees: list[TokenTree], path_probs: NDArray[np.float64], max_nodes: int) -> list[TokenTree]:
    """The trees of the likeliest `max_nodes` nodes of all and every anchor.

    What stays is connected: of equals the earlier stays, which is the parent if one of them is.
    """
    starts = np.cumsum([0] + [tree.num_nodes for tree in trees[:-1]])
    order: NDArray[np.float64] = -path_probs
    order[starts] = -np.inf
    kept = np.zeros(len(path_probs), np.bool_)
    kept[np.argsort(order, kind="stable")[:max_nodes]] = True
    return kept_trees(trees, kept)
