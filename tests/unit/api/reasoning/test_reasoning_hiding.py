"""Hidden thinking has no log-probabilities, wherever steps end and on however many replicas it was thought."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tool_templates import THINKS, tokenizer_with

from goose_ray.api.calls import Delta, GenerateCall, PromptInfo, ScoredToken, TokenScores
from goose_ray.api.failover import SentAnswer
from goose_ray.api.reasoning.hiding import without_scores_of_thinking
from goose_ray.api.reasoning.reader import ReasoningReader
from goose_ray.engine.sampling_params import SamplingParams

CALL = GenerateCall(
    request_id="r", prompt="a", sampling=SamplingParams(max_tokens=9, logprobs=0), clip_max_tokens=False
)
TOKENIZER = tokenizer_with(THINKS)
ANSWERS = {"<think>Hm, yes.</think>The answer is 3.": "The answer is 3.", " \nHi there.": " \nHi there."}


def run_of(text: str, cuts: list[int]) -> list[Delta]:
    """A step ends after each of the `cuts` and at the end."""
    token_ids = TOKENIZER.encode(text)
    names = [TOKENIZER.decode((token_id,)) for token_id in token_ids]
    ends = sorted({min(cut, len(token_ids)) for cut in cuts} | {len(token_ids)})
    reader = ReasoningReader(TOKENIZER, frozenset(), is_begun=False, told=False)
    return [
        reader.read(
            Delta(
                text="".join(names[start:end]),
                token_ids=tuple(token_ids[start:end]),
                prompt=PromptInfo(1) if start == 0 else None,
                finish_reason="stop" if end == len(token_ids) else None,
                scores=tuple(TokenScores(ScoredToken(name.encode(), -1.0), (), 0) for name in names[start:end]),
            )
        )
        for start, end in zip([0, *ends], ends, strict=False)
    ]


async def told(deltas: list[Delta]) -> list[Delta]:
    async def arriving() -> AsyncGenerator[tuple[int, Delta]]:
        for delta in deltas:
            yield 3, delta

    return [delta async for _, delta in without_scores_of_thinking(arriving())]


@pytest.mark.parametrize("text", ANSWERS)
@given(first=st.lists(st.integers(1, 30)), second=st.lists(st.integers(1, 30)), died_after=st.integers(0, 30))
def test_scores_are_those_of_the_answer(text: str, first: list[int], second: list[int], died_after: int) -> None:
    sent = SentAnswer()
    before = run_of(text, first)
    passed_on = [sent.unsent(delta) for delta in before[: min(died_after, len(before) - 1)]]
    sent.start_run(CALL)
    passed_on += [sent.unsent(delta) for delta in run_of(text, second)]
    deltas = asyncio.run(told([delta for delta in passed_on if delta is not None]))
    assert "".join(delta.text for delta in deltas) == ANSWERS[text]
    scored = b"".join(score.token.content for delta in deltas for score in delta.scores or ())
    assert scored.decode() == ANSWERS[text]
