"""Holds sessions with an engine in this process and keeps what came back.

Drives `Engine.step` itself, without threads or clocks in between: with the same sessions and the same concurrency the
same requests share the same steps.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from goose_ray.bench.prompts import Dialogue, EncodedPrompt
from goose_ray.engine.engine import Engine
from goose_ray.engine.request import FinishReason, GenerationRequest, SpeculationStats
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.engine.tokenizer import Tokenizer

__all__ = ["Reply", "Session", "answer_each", "greedy", "hold"]


@dataclass(frozen=True, slots=True)
class Session:
    """Requests that follow one another: `next_prompt` maps the replies so far to the next prompt, None at the end."""

    session_id: str
    next_prompt: Callable[[Sequence[str]], EncodedPrompt | None]

    @classmethod
    def of_dialogue(cls, dialogue: Dialogue, tokenizer: Tokenizer, *, chat: bool, limit: int) -> "Session":
        return cls(dialogue.dialogue_id, lambda replies: dialogue.prompt_after(replies, tokenizer, chat, limit))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One reply, the `turn`-th of its session."""

    session_id: str
    turn: int
    prompt: EncodedPrompt
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: SpeculationStats
    # from when it was asked for to its end, and to its first tokens
    seconds: float
    first_s: float


@dataclass(slots=True)
class _Running:
    session: Session
    replies: list[str]
    prompt: EncodedPrompt
    sent_s: float
    first_s: float | None = None
    text: str = ""
    token_ids: list[int] = field(default_factory=list)


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0)


def answer_each(
    engine: Engine,
    prompts: Sequence[tuple[int, ...]],
    sampling: SamplingParams,
    *,
    concurrency: int,
    on_reply: Callable[[int, Reply], None],
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Has every prompt answered by itself; `on_reply` gets its index and its reply, in any order."""

    def session(index: int, token_ids: tuple[int, ...]) -> Session:
        return Session(str(index), lambda replies: None if replies else EncodedPrompt(token_ids))

    hold(
        engine,
        [session(index, token_ids) for index, token_ids in enumerate(prompts)],
        sampling,
        concurrency=concurrency,
        on_reply=lambda reply: on_reply(int(reply.session_id), reply),
        clock=clock,
    )


def hold(
    engine: Engine,
    sessions: Sequence[Session],
    sampling: SamplingParams,
    *,
    concurrency: int,
    on_reply: Callable[[Reply], None],
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Has every request of every session answered, `concurrency` sessions at a time, begun in order."""
    waiting, running = deque(sessions), dict[str, _Running]()
    numbers = count()

    def send(session: Session, replies: list[str]) -> None:
        prompt = session.next_prompt(replies)
        if prompt is None:
            return
        request_id = str(next(numbers))
        engine.add_request(
            GenerationRequest(request_id=request_id, prompt_token_ids=prompt.token_ids, sampling=sampling)
        )
        running[request_id] = _Running(session, replies, prompt, clock())

    while waiting or running:
        while waiting and len(running) < concurrency:
            send(waiting.popleft(), [])
        for output in engine.step():
            entry = running[output.request_id]
            entry.text += output.text
            entry.token_ids += output.token_ids
            if entry.first_s is None:
                entry.first_s = clock() - entry.sent_s
            if output.finish_reason is None:
                continue
            del running[output.request_id]
            on_reply(
                Reply(
                    session_id=entry.session.session_id,
                    turn=len(entry.replies),
                    prompt=entry.prompt,
                    token_ids=tuple(entry.token_ids),
                    finish_reason=output.finish_reason,
                    stats=output.stats,
                    seconds=clock() - entry.sent_s,
                    first_s=entry.first_s,
                )
            )
            send(entry.session, [*entry.replies, entry.text])
