"""Several tokens a step, and calls of several steps: B19. What is streamed is what would have been sent whole."""

import json
from typing import Any

import pytest
from engine_app import EngineApp
from engine_helpers import ScriptedSpeculator
from fakes import EOS, scripted_model
from logit_runner import LogitRunner
from scripted_engine import forced
from tool_templates import MISTRAL, tokenizer_with

from goose_ray.config import EngineConfig
from goose_ray.engine.engine import Engine

LENGTHS = (0, 3, 40)
PATH = "/v1/chat/completions"
ARGUMENTS = {
    "city": "Saint-Étienne 😀",
    "notes": ['a "quoted" {brace}', "line\nbreak", "</tool_call>"],
    "deep": {"a": [{}]},
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hi"}],
    "tools": [TOOL],
    "temperature": 0,
    "max_tokens": 1500,
}


def hermes(arguments: Any) -> str:
    text = json.dumps(arguments, ensure_ascii=False)
    return f'<tool_call>\n{{"name": "get_weather", "arguments": {text}}}\n</tool_call>'


def check(app: EngineApp, **options: Any) -> tuple[str | None, list[Any], str]:
    """(content, arguments as they came, finish reason) of the whole answer, which the stream says too."""
    body = {**BODY, **options}
    answer = app.whole(PATH, **body)
    (choice,) = answer["choices"]
    message = choice["message"]
    calls = [call["function"] for call in message.get("tool_calls", [])]
    content = ""
    streamed: list[dict[str, str]] = []
    reasons: list[Any] = []
    events = app.streamed(PATH, **body, stream_options={"include_usage": True})
    assert events.pop()["usage"]["completion_tokens"] == answer["usage"]["completion_tokens"]
    for event in events:
        delta = event["choices"][0]["delta"]
        content += delta.get("content") or ""
        for part in delta.get("tool_calls", []):
            if "id" in part:
                assert part["index"] == len(streamed)
                streamed.append({"name": part["function"]["name"], "arguments": ""})
            assert part["index"] == len(streamed) - 1
            part["function"]["arguments"].encode("utf-8", "strict")
            streamed[-1]["arguments"] += part["function"]["arguments"]
        reasons.append(event["choices"][0]["finish_reason"])
    assert content == (message["content"] or "")
    assert streamed == calls
    assert set(reasons[:-1]) <= {None}
    assert reasons[-1] == choice["finish_reason"]
    return message["content"], [call["arguments"] for call in calls], choice["finish_reason"]


@pytest.mark.parametrize("length", LENGTHS)
def test_b19_calls_in_bursts(length: int) -> None:
    text = f"Ich sehe näch.\n{hermes(ARGUMENTS)}{hermes({})}"
    with EngineApp.serving(forced([*text.encode(), EOS], length=length, num_slots=4096, max_model_len=4096)) as app:
        content, arguments, reason = check(app)
        assert (content, reason) == ("Ich sehe näch.\n", "tool_calls")
        assert [json.loads(one) for one in arguments] == [ARGUMENTS, {}]
        # inside the tag, the name, a character, the arguments
        for max_tokens in (20, 45, 84, 85, 100):
            assert check(app, max_tokens=max_tokens)[2] == "length"


def test_b19_what_ends_an_answer_ends_it_inside_a_call_too() -> None:
    text = f"{hermes(ARGUMENTS)}{hermes({})}"
    with EngineApp.serving(forced([*text.encode(), EOS], length=7, num_slots=4096, max_model_len=4096)) as app:
        _, arguments, reason = check(app, parallel_tool_calls=False)
        assert ([json.loads(one) for one in arguments], reason) == ([ARGUMENTS], "tool_calls")
        _, arguments, _ = check(app, stop=["quoted"])
        assert len(arguments) == 1
        assert arguments[0].endswith('"a \\"')
        assert check(app, tool_choice="none") == (text, [], "stop")


@pytest.mark.parametrize("length", LENGTHS)
def test_b19_what_is_no_call_is_content(length: int) -> None:
    text = f'<tool_call>{{"name": "get_weather", "arguments": {{é}}</tool_call> <tool_c {hermes({})} <tool_call>'
    with EngineApp.serving(forced([*text.encode(), EOS], length=length, num_slots=4096, max_model_len=4096)) as app:
        content, arguments, _ = check(app)
        assert content == '<tool_call>{"name": "get_weather", "arguments": {é}</tool_call> <tool_c  <tool_call>'
        assert arguments == ["{}"]


def test_calls_written_with_special_tokens() -> None:
    """Which are no text of an answer otherwise."""
    tokenizer = tokenizer_with(MISTRAL, specials=("[TOOL_CALLS]", "[ARGS]"))
    assert tokenizer.special_token_id("[ARGS]") is not None
    text = f"Sí.[TOOL_CALLS]get_weather[ARGS]{json.dumps(ARGUMENTS)}[TOOL_CALLS]get_weather[ARGS]{{}}"
    model = scripted_model([*tokenizer.encode(text), tokenizer.eos_token_ids[0]])
    size = tokenizer.vocab_size
    engine = Engine(
        LogitRunner(model, vocab_size=size, num_slots=1024, max_model_len=1024, eos_token_ids=tokenizer.eos_token_ids),
        ScriptedSpeculator(model, length=8, vocab_size=size),
        tokenizer,
        EngineConfig(),
    )
    with EngineApp.serving(engine) as app:
        content, arguments, reason = check(app, max_tokens=200)
        assert (content, reason) == ("Sí.", "tool_calls")
        assert [json.loads(one) for one in arguments] == [ARGUMENTS, {}]
        assert check(app, max_tokens=200, tool_choice="none")[0] == text.replace("[TOOL_CALLS]", "").replace(
            "[ARGS]", ""
        )
