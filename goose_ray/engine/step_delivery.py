"""What of a step's verified paths reaches the clients: grammars advanced, stop conditions applied, faults kept apart.

A fault that belongs to one request ends that request alone. Knows no slots, no scheduler and no statistics.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from goose_ray.engine.delivery import Delivery
from goose_ray.engine.grammar import GrammarState, Place
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
    rules, grammar = sequence.logit_rules, sequence.grammar
    num_kept = len(token_ids) if rules is None else rules.num_kept(token_ids, sequence.num_output)
    is_ruled_out = num_kept < len(token_ids)
    token_ids = token_ids[:num_kept]
    is_complete = False
    if grammar is not None and token_ids:
        grammar.advance(token_ids)
        is_complete = grammar.place is Place.COMPLETE
    try:
        delivery = sequence.output.push(token_ids, logprobs, is_complete=is_complete)
    except Exception:
        _logger.exception("request %r is aborted: its output cannot be delivered", sequence.request_id)
        return ABORTED
    if is_ruled_out and delivery.finish_reason is None:
        return replace(ABORTED, error=_none_left(sequence, num_kept))
    if grammar is not None and grammar.problem is not None:
        # What ended before that is well; a last token that cannot stand there is not.
        is_wrong = not grammar.has_all and delivery.num_committed == len(token_ids)
        if delivery.finish_reason is None or is_wrong:
            return replace(ABORTED, error=_stuck(sequence, grammar, len(token_ids) - 1))
    return delivery


def _stuck(sequence: SequenceState, grammar: GrammarState, last: int) -> InvalidRequestError:
    """`last` is the index of the step's last token."""
    rules = sequence.logit_rules
    if not grammar.has_all and rules is not None and rules.fields_at(sequence.num_output + last):
        # Its mask was applied: that token was drawn from nothing.
        return _none_left(sequence, last)
    param = _shape_of(sequence)
    return InvalidRequestError(
        f"{param}: the output cannot go on as asked: {grammar.problem}", param, "structured_output"
    )


def _none_left(sequence: SequenceState, index: int) -> InvalidRequestError:
    """Of the step's token number `index`, for which there was nothing to choose from."""
    position = sequence.num_output + index
    fields = [] if sequence.logit_rules is None else sequence.logit_rules.fields_at(position)
    ruling = " and ".join(fields)
    after = f"after {position} tokens of output" if position else "as the output's first"
    if (shape := _shape_of(sequence)) is not None:
        return InvalidRequestError(
            f"{shape}: no token that fits it is left by {ruling} {after}", shape, "structured_output"
        )
    return InvalidRequestError(f"{ruling} must leave a token to choose, and leave none {after}", fields[0])


def _shape_of(sequence: SequenceState) -> str | None:
    """The field that asks for structured output."""
    structured = sequence.sampling.structured
    return None if structured is None else structured.param
