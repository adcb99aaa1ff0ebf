"""An engine whose model says what it is told to, with drafts that know it: where an answer ends is forced."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from engine_helpers import ScriptedSpeculator, make_engine
from fakes import EOS, FakeTokenizer, NextToken, scripted_model
from logit_runner import LogitRunner

from goose_ray.engine.drafting import BatchSpeculator
from goose_ray.engine.engine import Engine
from goose_ray.engine.step import StepBatch

__all__ = ["forced", "modelled"]


def forced(output: Sequence[int], *, length: int = 8, num_right: int | None = None, **options: Any) -> Engine:
    """Every reply is `output`, then its last token for ever; `length` tokens of it are drafted a step."""
    model = scripted_model(output)
    size = 256 + len(options.get("pieces", ()))
    drafts = ScriptedSpeculator(model, length=length, num_right=num_right, vocab_size=size)
    return modelled(model, drafts, **options)


def modelled(
    model: NextToken,
    speculator: BatchSpeculator,
    *,
    pieces: Sequence[str | bytes] = (),
    specials: Iterable[int] = (EOS,),
    num_slots: int = 512,
    max_model_len: int = 256,
    on_step: Callable[[StepBatch], None] | None = None,
    **config: Any,
) -> Engine:
    """Tokens below 256 are bytes, those above `pieces`; EOS is a special one."""
    runner = LogitRunner(
        model, vocab_size=256 + len(pieces), num_slots=num_slots, max_model_len=max_model_len, on_step=on_step
    )
    return make_engine(model, speculator, runner=runner, tokenizer=FakeTokenizer(pieces, specials=specials), **config)
