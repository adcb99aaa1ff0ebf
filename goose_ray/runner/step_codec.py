"""Steps as bytes, for ranks in other processes: arrays as they are, the little else pickled.

Ranks draft nothing, so of a tree only its shape travels, and that is in the batch's rows already. Sampling parameters
go once a request. To be decoded only from whom the channel has recognised: a pickle runs what it names.
"""

import pickle
import struct
from dataclasses import MISSING, fields
from typing import Any

import numpy as np

from goose.tree import IntArray, TokenTree
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.engine.step import SequenceStep, StepBatch

__all__ = ["StepDecoder", "StepEncoder"]

_LENGTHS = struct.Struct("<II")
# Both ends forget the sampling parameters they know when there are as many requests as this.
_MOST_KNOWN = 4096
_BATCH_FIELDS = ("step_id", "token_ids", "positions", "slots", "parents", "sequences", "harvest_k")
_SEQUENCE_FIELDS = (
    "request_id",
    "row_start",
    "row_end",
    "num_chain",
    "context_slots",
    "tree",
    "sampling",
    "output_position",
    "harvest_chain",
)
# What few steps carry, with what it is where it is not given.
_RARE_BATCH_FIELDS = {field.name: field.default for field in fields(StepBatch) if field.name not in _BATCH_FIELDS}
_RARE_FIELDS = {field.name: field.default for field in fields(SequenceStep) if field.name not in _SEQUENCE_FIELDS}


class StepEncoder:
    """One for each stream of steps; what it has sent is part of what it means by the next."""

    def __init__(self) -> None:
        self._known: dict[str, SamplingParams] = {}

    def encode(self, batch: StepBatch) -> bytes:
        forget = len(self._known) > _MOST_KNOWN
        if forget:
            self._known.clear()
        sequences = []
        arrays = [batch.token_ids, batch.positions, batch.slots, batch.parents]
        for step in batch.sequences:
            sampling = None
            if self._known.get(step.request_id) is not step.sampling:
                sampling = self._known[step.request_id] = step.sampling
            sequences.append(
                (
                    step.request_id,
                    step.row_end,
                    step.num_chain,
                    len(step.context_slots),
                    step.tree is not None,
                    step.output_position,
                    step.harvest_chain,
                    sampling,
                    _rare(step, _RARE_FIELDS),
                )
            )
            arrays.append(step.context_slots)
        # Token ids, positions and slots are far below 2**31.
        words = np.concatenate(arrays).astype(np.int32)
        head = pickle.dumps(
            (batch.step_id, batch.harvest_k, batch.num_rows, forget, sequences, _rare(batch, _RARE_BATCH_FIELDS)),
            protocol=5,
        )
        return b"".join((_LENGTHS.pack(len(head), len(words)), head, words.data))


class StepDecoder:
    """The other end of a `StepEncoder`; must see all that it encodes, in order."""

    def __init__(self) -> None:
        self._known: dict[str, SamplingParams] = {}

    def decode(self, data: bytes | bytearray | memoryview) -> StepBatch:
        head_bytes, num_words = _LENGTHS.unpack_from(data)
        start = _LENGTHS.size + head_bytes
        step_id, harvest_k, num_rows, forget, sequences, rare = pickle.loads(memoryview(data)[_LENGTHS.size : start])
        if forget:
            self._known.clear()
        words = np.frombuffer(data, dtype=np.int32, count=num_words, offset=start).astype(np.int64)
        token_ids, positions, slots, parents = words[: 4 * num_rows].reshape(4, num_rows)
        steps = []
        row_start, place = 0, 4 * num_rows
        for (
            request_id,
            row_end,
            num_chain,
            num_context,
            has_tree,
            output_position,
            harvest_chain,
            sampling,
            more,
        ) in sequences:
            if sampling is not None:
                self._known[request_id] = sampling
            rows = slice(row_start + num_chain - 1, row_end)
            steps.append(
                SequenceStep(
                    request_id=request_id,
                    row_start=row_start,
                    row_end=row_end,
                    num_chain=num_chain,
                    context_slots=words[place : place + num_context],
                    tree=_tree(token_ids[rows], positions[rows], parents[rows], rows.start) if has_tree else None,
                    sampling=self._known[request_id],
                    output_position=output_position,
                    harvest_chain=harvest_chain,
                    **more,
                )
            )
            row_start = row_end
            place += num_context
        return StepBatch(
            step_id=step_id,
            token_ids=token_ids,
            positions=positions,
            slots=slots,
            parents=parents,
            sequences=tuple(steps),
            harvest_k=harvest_k,
            **rare,
        )


def _tree(token_ids: IntArray, positions: IntArray, parents: IntArray, anchor: int) -> TokenTree:
    """From the rows of its nodes. Who drafted them, and how sure of it, is the engine's to know."""
    num_nodes = len(token_ids)
    up = parents - anchor
    up[0] = -1
    return TokenTree(
        token_ids=token_ids,
        parents=up,
        depths=positions - positions[0],
        sources=np.zeros(num_nodes, dtype=np.int64),
        probs=np.ones(num_nodes, dtype=np.float32),
    )


def _rare(owner: Any, defaults: dict[str, Any]) -> dict[str, Any]:
    given = {}
    for name, default in defaults.items():
        value = getattr(owner, name)
        if default is MISSING or value is not default:
            given[name] = value
    return given
