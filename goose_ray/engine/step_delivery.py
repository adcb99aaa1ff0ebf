"""What of a step's verified paths reaches the clients: grammars advanced, stop conditions applied, faults kept apart.

A fault that belongs to one request ends that request alone. Knows no slots, no scheduler and no statistics.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from goose_ray.engine.delivery import Delivery
from goose_ray.engine.grammar import Place
from goose_ray.engine.logprobs import PathLogprobs
from goose_ray.engine.scheduler import ScheduledSequence
from goose_ray.engine.sequence import SequenceState
from goose_ray.engine.step import StepBatch, StepOutput, VerifiedPath
from goose_ray.errors import InvalidRequestError

__all__ = ["ABORTED", "deliver_step"]

_logger = logging.getLogger(__name__)

ABORTED = Delivery("", (), "abort", None, 0)


def deliver_step(scheduled: Sequence[ScheduledSequence], batch: StepBatch, result: StepOutput) -> list[Delivery | None]:
    """One entry a sequence, None where it had no tree. Changes grammars, output streams and prompt scores.

    Raises RuntimeError if the runner gave paths to other sequences than those with a tree.
    """
    for entry, of_prompt in zip(scheduled, result.prompt_logprobs, strict=False):
        if of_prompt is not None:
            entry.sequence.prompt_scores.add(of_prompt)
    deliveries: list[Delivery | None] = []
    logprobs = result.logprobs or (None,) * len(result.paths)
    for entry, step, path, of_path in zip(scheduled, batch.sequences, result.paths, logprobs, strict=True):
        if (path is None) != (step.tree is None):
            raise RuntimeError(f"the runner gave {path} for a {'prefill' if step.tree is None else 'tree'} step")
        deliveries.append(None if path is None else _deliver(entry.sequence, path, of_path))
    return deliveries


def _deliver(sequence: SequenceState, path: VerifiedPath, logprobs: PathLogprobs | None) -> Delivery:
    token_ids = path.token_ids.tolist()
    grammar = sequence.grammar
    is_complete = False
    if grammar is not None:
        grammar.advance(token_ids)
        is_complete = grammar.place is Place.COMPLETE
    try:
        delivery = sequence.output.push(token_ids, logprobs, is_complete=is_complete)
    except Exception:
        _logger.exception("request %r is aborted: its output cannot be delivered", sequence.request_id)
        return ABORTED
    if grammar is not None and grammar.problem is not None:
        # What ended before that is well; a last token that cannot stand there is not.
        is_wrong = not grammar.has_all and delivery.num_committed == len(token_ids)
        if delivery.finish_reason is None or is_wrong:
            return replace(ABORTED, error=_stuck(sequence, grammar.problem))
    return delivery


def _stuck(sequence: SequenceState, problem: str) -> InvalidRequestError:
    structured = sequence.sampling.structured
    param = None if structured is None else structured.param
    return InvalidRequestError(f"{param}: the output cannot go on as asked: {problem}", param, "structured_output")
