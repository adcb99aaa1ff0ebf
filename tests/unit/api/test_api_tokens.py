"""`/tokenize`, `/detokenize` and `/version`, as vLLM has them, over a real engine's calls."""

import asyncio
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pytest
from engine_app import EngineApp, Http
from fakes import EOS, FakeTokenizer
from scripted_engine import forced

from goose_ray.api.calls import EncodeCall
from goose_ray.api.prompts import PromptReader
from goose_ray.api.tools.prompting import ToolPrompts

CHAT = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def app() -> Iterator[EngineApp]:
    with EngineApp.serving(forced([97, 98, EOS])) as app:
        yield app


def refusal(app: EngineApp, path: str, **body: Any) -> tuple[int, Any]:
    async def send(http: Http) -> tuple[int, Any]:
        response = await http.post(path, json=body)
        return response.status_code, response.json()["error"]["param"]

    return app.run(send)


def test_a_text_is_told_as_its_tokens(app: EngineApp) -> None:
    told = app.whole("/tokenize", prompt="Hé", return_token_strs=True)
    assert told == {
        "count": 3,
        "max_model_len": 256,
        "tokens": list("Hé".encode()),
        "token_strs": ["H", "\ufffd", "\ufffd"],
    }
    assert app.whole("/tokenize", prompt="", add_special_tokens=False) == {
        "count": 0,
        "max_model_len": 256,
        "tokens": [],
        "token_strs": None,
    }


def test_a_conversation_is_told_as_its_prompt(app: EngineApp) -> None:
    told = app.whole("/tokenize", messages=CHAT)
    answer = app.whole("/v1/chat/completions", messages=CHAT, return_token_ids=True)
    assert told["tokens"] == answer["prompt_token_ids"]


def test_tokens_are_told_as_their_text_with_special_ones_by_name(app: EngineApp) -> None:
    assert app.whole("/detokenize", tokens=[*b"Hi", EOS]) == {"prompt": f"Hi<{EOS}>"}
    assert app.whole("/detokenize", tokens=[]) == {"prompt": ""}


def test_the_model_may_be_left_out(app: EngineApp) -> None:
    async def send(http: Http) -> list[int]:
        paths = {"/tokenize": {"prompt": "x"}, "/detokenize": {"tokens": [97]}}
        return [(await http.post(path, json=body)).status_code for path, body in paths.items()]

    assert app.run(send) == [200, 200]


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/tokenize", {}, (400, "prompt")),
        ("/tokenize", {"prompt": "x", "messages": CHAT}, (400, "prompt")),
        ("/tokenize", {"messages": CHAT, "add_special_tokens": True}, (400, "add_special_tokens")),
        ("/tokenize", {"messages": CHAT, "add_generation_prompt": False}, (400, "add_generation_prompt")),
        ("/tokenize", {"prompt": "x", "model": "other"}, (404, "model")),
        ("/tokenize", {"prompt": "x", "temperature": 1}, (400, "temperature")),
        ("/detokenize", {"tokens": [256]}, (400, "tokens")),
        ("/detokenize", {"tokens": [2**70]}, (400, "tokens")),
        ("/detokenize", {"tokens": [-1]}, (400, "tokens[0]")),
        ("/detokenize", {"tokens": [1], "model": "other"}, (404, "model")),
        ("/detokenize", {"tokens": "x"}, (400, "tokens")),
    ],
)
def test_a_wrong_field_is_named(app: EngineApp, path: str, body: dict[str, Any], expected: tuple[int, str]) -> None:
    assert refusal(app, path, **body) == expected


def test_the_version_is_the_packages(app: EngineApp) -> None:
    async def ask(http: Http) -> Any:
        return (await http.get("/version")).json()

    assert app.run(ask) == {"version": version("goose-ray")}


def test_special_tokens_around_a_text_can_be_left_out() -> None:
    class Framing(FakeTokenizer):
        def encode(self, text: str, *, max_tokens: int | None = None) -> list[int]:
            return [1, *text.encode(), 2]

    tokenizer = Framing()
    reader = PromptReader(tokenizer, 16, ToolPrompts(tokenizer, "auto"))

    async def both() -> list[tuple[int, ...]]:
        return [await reader.encode(EncodeCall(prompt="ab", add_special_tokens=wanted)) for wanted in (True, False)]

    assert asyncio.run(both()) == [(1, 97, 98, 2), (97, 98)]
    reader.stop()
