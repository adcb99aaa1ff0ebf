"""Structured output over HTTP, on a tiny model in this process: whole and streamed, choices, refusals, no one waits."""

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from engine_app import EngineApp, Http
from fakes import FakeTokenizer
from tiny_models import tiny_model

from goose.speculator import Speculator
from goose_ray.config import EngineConfig
from goose_ray.engine.engine import Engine
from goose_ray.engine.grammar import Grammar
from goose_ray.engine.grammar_trial import GrammarTrial
from goose_ray.engine.structured import StructuredOutput
from goose_ray.runner.local import LocalRunner

_EOS = 5
_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "ok": {"type": "boolean"}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}
_BODY: dict[str, Any] = {"prompt": "Say something", "max_tokens": 90, "temperature": 0.9, "seed": 4}
_SHAPES: list[dict[str, Any]] = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "reply", "schema": _SCHEMA, "strict": True}}},
    {"structured_outputs": {"regex": "[a-c]+(, [a-c]+){3}!"}},
    {"structured_outputs": {"grammar": 'root ::= "<" [0-9]+ ">"'}},
    {"structured_outputs": {"choice": ["first of all", "first things first", "second"]}, "stop": [" thing"]},
]


@pytest.fixture(scope="module", params=["goose", "anisotropic"])
def app(request: pytest.FixtureRequest) -> Iterator[EngineApp]:
    model = tiny_model("llama")
    model.generation_config.eos_token_id = _EOS
    runner = LocalRunner(model, model_id="tiny", num_slots=1024)
    config = EngineConfig(policy=request.param, budget=16)
    engine = Engine(runner, Speculator(policy=request.param, budget=16), FakeTokenizer(specials=(_EOS,)), config)
    with EngineApp.serving(engine) as app:
        yield app


@pytest.mark.parametrize("shape", _SHAPES)
def test_streamed_and_whole_are_alike(app: EngineApp, shape: dict[str, Any]) -> None:
    whole = app.whole("/v1/completions", **_BODY, **shape)
    (choice,) = whole["choices"]
    chunks = app.streamed("/v1/completions", **_BODY, **shape)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == choice["text"]
    assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
    if "response_format" in shape and choice["finish_reason"] == "stop":
        assert json.loads(choice["text"]).keys() == {"name", "ok"}
    if "regex" in shape.get("structured_outputs", {}) and choice["finish_reason"] == "stop":
        assert re.fullmatch("[a-c]+(, [a-c]+){3}!", choice["text"])
    if "stop" in shape:
        assert choice["text"] in ("first of all", "first", "second")


def test_choices_of_one_request_are_those_of_their_seeds(app: EngineApp) -> None:
    shape = _SHAPES[3]
    together = app.whole("/v1/completions", **_BODY, **shape, n=3)["choices"]
    alone = [app.whole("/v1/completions", **{**_BODY, "seed": 4 + i}, **shape)["choices"][0] for i in range(3)]
    assert [choice["text"] for choice in together] == [choice["text"] for choice in alone]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("shape", "param"),
    [
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": "?"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"json": {"type": "thing"}}}, "structured_outputs.json"),
        ({"structured_outputs": {"choice": [""]}}, "structured_outputs.choice"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"not": {}}}}},
            "response_format.json_schema.schema",
        ),
        ({"guided_regex": "é"}, "guided_regex"),
    ],
)
def test_what_cannot_be_compiled_is_a_bad_request(
    app: EngineApp, path: str, stream: bool, shape: dict[str, Any], param: str
) -> None:
    prompt = {"prompt": "x"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "x"}]}

    async def scenario(http: Http) -> None:
        response = await http.post(path, json={"model": "tiny", "stream": stream, **prompt, **shape})
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == param
        assert (await http.get("/health")).status_code == 200

    app.run(scenario)


def test_what_turns_out_impossible_is_an_error_of_that_request(app: EngineApp) -> None:
    """The model has no tokens for what must follow the first letter."""
    shape = {"structured_outputs": {"regex": "[ab]é"}}

    async def scenario(http: Http) -> None:
        response = await http.post("/v1/completions", json={"model": "tiny", **_BODY, **shape})
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["param"], error["code"]) == ("structured_outputs.regex", "structured_output")
        assert "no token of the model can follow" in error["message"]
        assert (await http.whole("/v1/completions", **_BODY, **_SHAPES[3]))["choices"][0]["finish_reason"] == "stop"

    app.run(scenario)
    app.engine.check_integrity()


def test_nobody_waits_for_a_grammar_of_others(app: EngineApp, monkeypatch: pytest.MonkeyPatch) -> None:
    started, go_on = threading.Event(), threading.Event()
    compile_one = app.engine.grammars.compile

    def slowly(structured: StructuredOutput, trial: GrammarTrial) -> Grammar:
        started.set()
        assert go_on.wait(60)
        return compile_one(structured, trial)

    monkeypatch.setattr(app.engine.grammars, "compile", slowly)

    # one that is not known yet
    shape = {"structured_outputs": {"choice": ["slowly", "slower"]}}

    async def scenario(http: Http) -> None:
        slow = asyncio.create_task(http.whole("/v1/completions", **_BODY, **shape))
        assert await asyncio.to_thread(started.wait, 60)
        assert (await http.whole("/v1/completions", **_BODY))["usage"]["completion_tokens"] > 0
        assert not slow.done()
        go_on.set()
        assert (await slow)["choices"][0]["finish_reason"] == "stop"

    app.run(scenario)
