"""Prompts are tokenised in threads of their own, and those of callers who left are not."""

import asyncio
import threading

import pytest
from fakes import FakeTokenizer

from goose_ray.api.calls import ChatPrompt, GenerateCall
from goose_ray.api.prompts import PromptReader
from goose_ray.api.tools.prompting import ToolPrompts
from goose_ray.engine.sampling_params import SamplingParams

TOOLS = ToolPrompts(FakeTokenizer(), "auto")


class HeldTokenizer(FakeTokenizer):
    """Halts in `encode` until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.texts: list[str] = []
        self.threads: list[str] = []

    def encode(self, text: str, *, max_tokens: int | None = None) -> list[int]:
        assert max_tokens == 100
        self.texts.append(text)
        self.threads.append(threading.current_thread().name)
        assert self.go.wait(60)
        return super().encode(text)


def call(prompt: ChatPrompt | str | tuple[int, ...], *, echo: bool = False) -> GenerateCall:
    return GenerateCall(request_id="r", prompt=prompt, sampling=SamplingParams(), clip_max_tokens=True, echo=echo)


def test_who_leaves_before_its_turn_costs_nothing() -> None:
    tokenizer = HeldTokenizer()

    async def scenario() -> None:
        reader = PromptReader(tokenizer, 100, TOOLS)
        reading = [asyncio.create_task(reader.read(call(text))) for text in "abcd"]
        while len(tokenizer.texts) < 2:
            await asyncio.sleep(0)
        reading[2].cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading[2]
        # the default executor and token ids do not wait for them
        assert await asyncio.to_thread(lambda: 1) == 1
        assert await reader.read(call((5, 6))) == (5, 6)
        tokenizer.go.set()
        assert [await reading[i] for i in (0, 1, 3)] == [(97,), (98,), (100,)]
        reader.stop()

    asyncio.run(scenario())
    assert "c" not in tokenizer.texts
    assert all(name.startswith("goose-tokenise") for name in tokenizer.threads)


def test_the_echo_of_text_is_the_text_and_of_ids_what_they_say() -> None:
    reader = PromptReader(FakeTokenizer(), 100, TOOLS)
    assert reader.echoed(call("ab", echo=True), (97, 98)) == "ab"
    assert reader.echoed(call((97, 98), echo=True), (97, 98)) == "ab"
    assert reader.echoed(call("ab"), (97, 98)) is None
