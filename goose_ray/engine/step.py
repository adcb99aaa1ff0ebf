"""The contract between engine and runner: one batched forward and what it came to.

A step is one flattened forward over the rows of all scheduled sequences, without padding. A sequence's rows are
its *chain* (committed tokens whose KV is not computed yet, in order; on a decoding sequence that is the anchor
alone) followed by the *draft nodes* of its tree, which hang below the anchor. A prefill chunk that does not reach
the anchor has no tree and samples nothing.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from goose.tree import FloatArray, IntArray, TokenTree
from goose.verify import VerifiedPath
from goose_ray.engine.logit_rules import LogitRules
from goose_ray.engine.logprobs import PathLogprobs
from goose_ray.engine.sampling_params import SamplingParams

__all__ = [
    "HarvestRows",
    "ModelRunner",
    "ModelSpec",
    "SequenceStep",
    "StepBatch",
    "StepOutput",
    "VerifiedPath",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What the engine must know of the model behind a runner."""

    model_id: str
    vocab_size: int
    # longest sequence (prompt + output) in tokens
    max_model_len: int
    # KV slots in the pool; slot numbers are 0 .. num_slots - 1
    num_slots: int
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SequenceStep:
    """One sequence's part of a step."""

    request_id: str
    # rows of the flattened batch: first and one past the last
    row_start: int
    row_end: int
    # the first `num_chain` rows are committed tokens
    num_chain: int
    # [num_context] int64: KV slots of the tokens already computed, in position order
    context_slots: IntArray
    # None: a prefill chunk that stops short of the anchor. Else node 0 is the last row of the chain
    # and node i > 0 is row `row_start + num_chain - 1 + i`.
    tree: TokenTree | None
    sampling: SamplingParams
    # index of the first output token drawn in this step; 0 for the first token after the prompt
    output_position: int
    # harvest successors at the chain rows too (they are prompt positions)
    harvest_chain: bool
    # None: the logits are left as they are
    logit_rules: LogitRules | None = None
    # [num_chain] int64: the tokens behind the chain's, whose log-probabilities are wanted there, -1 where none is.
    # None: nowhere
    scored_ids: IntArray | None = None
    # [num_nodes, ceil(vocab_size / 32)] int32: what may follow each node of the tree; bit t % 32 of word t // 32 is set
    # if token t may. No row is empty. None: everything may
    token_masks: NDArray[np.int32] | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepBatch:
    """One flattened forward of T rows over S sequences."""

    step_id: int
    # [T] int64
    token_ids: IntArray
    # [T] int64: position in the sequence (context length + depth)
    positions: IntArray
    # [T] int64: KV slot that receives the row's key and value; no slot twice
    slots: IntArray
    # [T] int64: row of the batch holding the parent token, -1 if the parent is the last context token or none
    parents: IntArray
    sequences: tuple[SequenceStep, ...]
    # successors wanted per harvested row; 0: no harvest
    harvest_k: int

    @property
    def num_rows(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True, eq=False)
class HarvestRows:
    """Successors at rows of the batch, for `goose.observation.Harvest`."""

    # [num_rows] int64: row numbers in the batch, ascending
    rows: NDArray[np.int64]
    # [num_rows, k] int64
    top_ids: IntArray
    # [num_rows, k] float32
    top_probs: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class StepOutput:
    """What one forward gave: for each sequence its verified path, or None for a prefill chunk without a tree."""

    paths: tuple[VerifiedPath | None, ...]
    harvest: HarvestRows | None
    # wall time of forward and verification, in seconds
    forward_s: float
    # one entry a sequence, None without a path or where none are asked for; () if nobody asks
    logprobs: tuple[PathLogprobs | None, ...] = ()
    # likewise, of `scored_ids`
    prompt_logprobs: tuple[PathLogprobs | None, ...] = ()


class ModelRunner(Protocol):
    """Runs the model. Owns weights and the KV tensors; knows no request beyond the step it is given.

    One decision, taken once: the walk (and any draw) happens inside `execute`, so that tensor-parallel ranks follow
    a single outcome.
    """

    @property
    def spec(self) -> ModelSpec: ...

    def execute(self, batch: StepBatch) -> StepOutput:
        """One forward. Writes the rows' keys and values to their slots; raises without side effects on bad arrays."""
        ...

    def check_health(self) -> None:
        """Raises EngineDeadError naming what is dead."""
        ...

    def shutdown(self) -> None:
        """Frees weights and KV. Idempotent."""
        ...
