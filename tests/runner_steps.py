"""A runner's steps built by hand, with slots anywhere in the pool, and a decode loop without an engine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from goose.tree import IntArray, TokenTree
from goose_ray.engine.logit_rules import LogitRules
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.engine.step import ModelRunner, SequenceStep, StepBatch, StepOutput

__all__ = ["GREEDY", "Part", "Script", "SlotDealer", "build_step", "decode"]

GREEDY = SamplingParams(temperature=0.0)

# The committed tokens of a sequence (prompt first) -> tokens and parents of the nodes below its anchor.
Script = Callable[[list[int]], tuple[list[int], list[int]]]


class SlotDealer:
    """Free slots of a pool, dealt at random, or lowest first."""

    def __init__(self, num_slots: int, *, seed: int | None) -> None:
        order = np.arange(num_slots) if seed is None else np.random.default_rng(seed).permutation(num_slots)
        self._free: list[int] = order.tolist()[::-1]

    @property
    def num_free(self) -> int:
        return len(self._free)

    def deal(self, count: int) -> IntArray:
        return np.array([self._free.pop() for _ in range(count)], dtype=np.int64)

    def take_back(self, slots: Sequence[int]) -> None:
        self._free.extend(reversed(slots))


@dataclass(frozen=True, kw_only=True)
class Part:
    """One sequence's part of a step: committed tokens to compute, and the nodes below the last of them."""

    chain: Sequence[int]
    context_slots: Sequence[int] = ()
    # None: a prefill chunk that stops short of the anchor. Else tokens and parents of the draft nodes; 0 is the anchor.
    drafts: tuple[Sequence[int], Sequence[int]] | None = None
    sampling: SamplingParams = GREEDY
    output_position: int = 0
    harvest_chain: bool = False
    request_id: str = "r"
    logit_rules: LogitRules | None = None
    # [num_nodes, ceil(vocab / 32)]
    token_masks: NDArray[np.int32] | None = None

    @property
    def tree(self) -> TokenTree | None:
        if self.drafts is None:
            return None
        tokens, parents = self.drafts
        return TokenTree.from_parents([self.chain[-1], *tokens], [-1, *parents])

    @property
    def num_rows(self) -> int:
        return len(self.chain) + (len(self.drafts[0]) if self.drafts is not None else 0)


def build_step(parts: Sequence[Part], slots: IntArray, *, harvest_k: int = 0) -> StepBatch:
    """`slots` has one entry a row."""
    tokens: list[int] = []
    positions: list[int] = []
    parents: list[int] = []
    sequences: list[SequenceStep] = []
    for part in parts:
        start, num_chain = len(tokens), len(part.chain)
        first = len(part.context_slots)
        tokens += part.chain
        positions += range(first, first + num_chain)
        parents += [-1, *range(start, start + num_chain - 1)]
        if (tree := part.tree) is not None:
            anchor = start + num_chain - 1
            tokens += tree.token_ids[1:].tolist()
            positions += (positions[anchor] + tree.depths[1:]).tolist()
            parents += (anchor + tree.parents[1:]).tolist()
        sequences.append(
            SequenceStep(
                request_id=part.request_id,
                row_start=start,
                row_end=len(tokens),
                num_chain=num_chain,
                context_slots=np.array(part.context_slots, dtype=np.int64),
                tree=tree,
                sampling=part.sampling,
                output_position=part.output_position,
                harvest_chain=part.harvest_chain,
                logit_rules=part.logit_rules,
                token_masks=part.token_masks,
            )
        )
    return StepBatch(
        step_id=0,
        token_ids=np.array(tokens, dtype=np.int64),
        positions=np.array(positions, dtype=np.int64),
        slots=slots,
        parents=np.array(parents, dtype=np.int64),
        sequences=tuple(sequences),
        harvest_k=harvest_k,
    )


@dataclass(kw_only=True)
class _Running:
    prompt_length: int
    tokens: list[int]
    sampling: SamplingParams
    script: Script
    num_tokens: int
    slots: list[int] = field(default_factory=list)
    num_accepted: int = 0

    @property
    def finished(self) -> bool:
        return len(self.tokens) - self.prompt_length >= self.num_tokens

    def part(self, chunk: int) -> Part:
        pending = self.tokens[len(self.slots) :]
        drafts = self.script(self.tokens) if len(pending) <= chunk else None
        return Part(
            chain=pending[:chunk],
            context_slots=tuple(self.slots),
            drafts=drafts,
            sampling=self.sampling,
            output_position=len(self.tokens) - self.prompt_length,
        )


def decode(
    runner: ModelRunner,
    dealer: SlotDealer,
    requests: Sequence[tuple[Sequence[int], SamplingParams, Script]],
    *,
    num_tokens: int,
    chunk: int = 6,
) -> tuple[list[list[int]], int]:
    """Outputs of `num_tokens` tokens, and how many draft tokens were accepted in all.

    `requests` are prompts, sampling and scripts. All run together; prompts are computed `chunk` tokens a step.
    """
    running = [
        _Running(
            prompt_length=len(prompt), tokens=list(prompt), sampling=sampling, script=script, num_tokens=num_tokens
        )
        for prompt, sampling, script in requests
    ]
    while active := [sequence for sequence in running if not sequence.finished]:
        parts = [sequence.part(chunk) for sequence in active]
        slots = dealer.deal(sum(part.num_rows for part in parts))
        batch = build_step(parts, slots)
        _commit(active, batch, runner.execute(batch), dealer)
    for sequence in running:
        dealer.take_back(sequence.slots)
    outputs = [sequence.tokens[sequence.prompt_length :][:num_tokens] for sequence in running]
    return outputs, sum(sequence.num_accepted for sequence in running)


def _commit(active: list[_Running], batch: StepBatch, output: StepOutput, dealer: SlotDealer) -> None:
    for sequence, step, path in zip(active, batch.sequences, output.paths, strict=True):
        anchor = step.row_start + step.num_chain - 1
        kept = list(range(step.row_start, anchor + 1))
        if path is not None:
            kept += (anchor + path.accepted_nodes).tolist()
            sequence.tokens += path.token_ids.tolist()
            sequence.num_accepted += len(path.accepted_nodes)
        sequence.slots += batch.slots[kept].tolist()
        dropped = sorted(set(range(step.row_start, step.row_end)) - set(kept))
        dealer.take_back(batch.slots[dropped].tolist())
