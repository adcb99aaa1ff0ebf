"""How many tokens a call may generate: what was asked for, what the context holds, and who decides."""

import pytest

from goose_ray.api.calls import ChatPrompt, GenerateCall
from goose_ray.api.context import fit_to_context
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.errors import InvalidRequestError


def call(max_tokens: int, *, clip: bool, chat: bool = True) -> GenerateCall:
    return GenerateCall(
        request_id="r",
        prompt=ChatPrompt(({"role": "user", "content": "x"},)) if chat else "x",
        sampling=SamplingParams(max_tokens=max_tokens),
        clip_max_tokens=clip,
    )


@pytest.mark.parametrize(
    ("max_tokens", "clip", "num_prompt", "allowed"),
    [(2**31 - 1, True, 60, 40), (16, True, 60, 16), (16, True, 95, 5), (40, False, 60, 40), (1, False, 99, 1)],
)
def test_what_fits(max_tokens: int, clip: bool, num_prompt: int, allowed: int) -> None:
    assert fit_to_context(call(max_tokens, clip=clip), num_prompt, 100).max_tokens == allowed


@pytest.mark.parametrize(("max_tokens", "clip", "num_prompt"), [(41, False, 60), (1, False, 100), (16, True, 100)])
@pytest.mark.parametrize("chat", [True, False])
def test_what_does_not_fit_is_refused(max_tokens: int, clip: bool, num_prompt: int, chat: bool) -> None:
    with pytest.raises(InvalidRequestError, match="maximum context length is 100 tokens") as refused:
        fit_to_context(call(max_tokens, clip=clip, chat=chat), num_prompt, 100)
    assert refused.value.code == "context_length_exceeded"
    assert refused.value.param == ("messages" if chat else "prompt")


def test_a_prompt_that_leaves_no_room_is_told_so() -> None:
    with pytest.raises(InvalidRequestError) as refused:
        fit_to_context(call(1, clip=True), 100, 100)
    assert str(refused.value) == (
        "This model's maximum context length is 100 tokens; the 100 of your messages leave no room for an answer. "
        "Please shorten your messages."
    )


def test_a_limit_that_fits_no_prompt_is_the_field_at_fault() -> None:
    with pytest.raises(InvalidRequestError, match="100 tokens") as refused:
        fit_to_context(call(100, clip=False), 1, 100)
    assert refused.value.param == "max_tokens"
