"""Bad arrays are refused, naming what is wrong, before anything is computed or written."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from runner_steps import Part, build_step
from tiny_models import VOCAB_SIZE, tiny_model

from goose.tree import TokenTree
from goose_ray.engine.step import SequenceStep, StepBatch
from goose_ray.runner.local import LocalRunner

_NUM_SLOTS = 64


@pytest.fixture(scope="module")
def runner() -> LocalRunner:
    return LocalRunner(tiny_model("llama"), model_id="tiny", num_slots=_NUM_SLOTS, max_model_len=48)


def _good() -> StepBatch:
    parts = [
        Part(chain=[1, 2, 3], context_slots=[40, 41], request_id="a"),
        Part(chain=[4, 5], context_slots=[42], drafts=([6, 7, 8], [0, 0, 1]), request_id="b"),
    ]
    return build_step(parts, np.arange(8), harvest_k=3)


def _array(name: str, index: int, value: int) -> StepBatch:
    batch = _good()
    array = getattr(batch, name).copy()
    array[index] = value
    return replace(batch, **{name: array})


def _sequence(index: int, **fields: object) -> StepBatch:
    batch = _good()
    sequences: list[SequenceStep] = list(batch.sequences)
    sequences[index] = replace(sequences[index], **fields)  # type: ignore[arg-type]
    return replace(batch, sequences=tuple(sequences))


def _slots(*slots: int) -> np.ndarray:
    return np.array(slots, dtype=np.int64)


_BAD = {
    "token too large": (_array("token_ids", 1, VOCAB_SIZE), "token_ids must be between 0 and 127, not 128"),
    "token negative": (_array("token_ids", 1, -1), "token_ids must be between 0 and 127, not -1"),
    "position too large": (_array("positions", 2, 48), "positions must be between 0 and 47, not 48"),
    "position not its depth": (_array("positions", 7, 3), "request b: positions"),
    "slot out of the pool": (_array("slots", 0, _NUM_SLOTS), "slots must be between 0 and 63, not 64"),
    "slot twice": (_array("slots", 0, 5), "slots name a slot twice"),
    "slot of the context": (_array("slots", 0, 42), "request b: a row's slot is one of the context's"),
    "parent of another sequence": (_array("parents", 3, 2), "request b: parents"),
    "parent not the tree's": (_array("parents", 7, 6), "request b: parents"),
    "parent behind the row": (_array("parents", 1, 2), "request a: parents"),
    "wrong dtype": (replace(_good(), slots=np.arange(8, dtype=np.int32)), r"slots must be \[8\] int64"),
    "wrong length": (replace(_good(), positions=np.arange(7)), r"positions must be \[8\] int64"),
    "no rows": (build_step([], np.arange(0)), "at least one row"),
    "harvest_k": (replace(_good(), harvest_k=VOCAB_SIZE + 1), "harvest_k must be between 0 and 128, not 129"),
    "rows overlap": (_sequence(1, row_start=2), "request b: rows 2 to 8 do not follow row 3"),
    "rows missing": (replace(_good(), sequences=_good().sequences[:1]), "the sequences have 3 rows, the arrays 8"),
    "no chain": (_sequence(0, num_chain=0), "request a: 3 rows are not 0 chain rows"),
    "chain and tree": (_sequence(1, num_chain=1), "request b: 5 rows are not 1 chain rows and 3 drafts"),
    "other tree": (
        _sequence(1, tree=TokenTree.from_parents([5, 6, 7, 9], [-1, 0, 0, 1])),
        "request b: token_ids differ from its tree's",
    ),
    "context out of the pool": (_sequence(0, context_slots=_slots(40, -1)), "request a: context_slots must be between"),
    "context twice": (_sequence(0, context_slots=_slots(40, 40)), "request a: context_slots name a slot twice"),
    "context dtype": (_sequence(0, context_slots=np.array([1.0, 2.0])), r"request a: context_slots must be \[2\]"),
    "context length": (_sequence(0, context_slots=_slots(40)), "request a: positions are not context length"),
    "output position": (_sequence(1, output_position=-1), "request b: output_position must be 0 or more, not -1"),
}


@pytest.mark.parametrize("name", _BAD)
def test_bad_arrays_are_refused_without_side_effects(runner: LocalRunner, name: str) -> None:
    batch, message = _BAD[name]
    before = runner.logits(_probe())
    with pytest.raises(ValueError, match=message):
        runner.execute(batch)
    # The pool is as it was, and so is the checker's own memory: a good step of the same slots passes.
    assert torch.equal(runner.logits(_probe()), before)
    assert len(runner.execute(_good()).paths) == 2


def _probe() -> StepBatch:
    """Sees every slot that the batches above could write."""
    return build_step([Part(chain=[9], context_slots=list(range(40)), drafts=([], []))], np.array([63]))
