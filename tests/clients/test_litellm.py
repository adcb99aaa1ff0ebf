"""litellm, by its provider for OpenAI-compatible servers."""

import asyncio

import pytest

litellm = pytest.importorskip("litellm", reason="make clients")

from clients.helpers import MODEL, Server  # noqa: E402

pytestmark = pytest.mark.usefixtures("isolated")
PROMPT = "Name three primary colours."


def options(server: Server) -> dict[str, object]:
    base = {"model": f"openai/{MODEL}", "api_base": f"{server.url}/v1", "api_key": "none", "max_retries": 0}
    return {**base, "messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": 24}


def test_a_whole_answer(server: Server) -> None:
    answer = litellm.completion(**options(server))
    assert answer.choices[0].message.content == server.chat(PROMPT, max_tokens=24)
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0


def test_a_stream_with_its_usage(server: Server) -> None:
    chunks = list(litellm.completion(**options(server), stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == server.chat(PROMPT, max_tokens=24)
    (usage,) = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
    assert usage.completion_tokens > 0


def test_several_at_once(server: Server) -> None:
    async def ask() -> list[str]:
        answers = await asyncio.gather(*(litellm.acompletion(**options(server)) for _ in range(4)))
        return [answer.choices[0].message.content for answer in answers]

    assert set(asyncio.run(ask())) == {server.chat(PROMPT, max_tokens=24)}


def test_errors_are_those_of_their_kind(server: Server) -> None:
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**{**options(server), "model": "openai/no-such-model"})
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(**{**options(server), "temperature": 9})
