"""Tools over HTTP: what requests may say, what the replica is asked, and how calls come back."""

import json
from typing import Any

import pytest
from scripted_backend import CHAT, STATS, ScriptedBackend, events_of, post

from goose_ray.api.calls import ChatPrompt, Delta, PromptInfo
from goose_ray.engine.structured import StructuredOutput

PATH = "/v1/chat/completions"
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/city"}},
            "required": ["city"],
            "$defs": {"city": {"type": "string"}},
        },
    },
}
CLOCK: dict[str, Any] = {"type": "function", "function": {"name": "clock"}}
TOOLS: dict[str, Any] = {**CHAT, "tools": [WEATHER, CLOCK]}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": '{"zone": "UTC"}'}}


def backend(*texts: str, tool_format: str | None = "hermes", finish_reason: Any = "stop") -> ScriptedBackend:
    script: list[Delta | Exception] = [
        Delta(
            text=text,
            token_ids=(number,),
            prompt=None if number else PromptInfo(3, tool_format=tool_format),
            finish_reason=finish_reason if number == len(texts) - 1 else None,
            stats=STATS if number == len(texts) - 1 else None,
        )
        for number, text in enumerate(texts)
    ]
    return ScriptedBackend(script)


def joined(events: list[Any]) -> dict[int, dict[str, Any]]:
    """What a client puts together, by choice."""
    choices: dict[int, dict[str, Any]] = {}
    for choice in (choice for event in events for choice in event["choices"]):
        so_far = choices.setdefault(choice["index"], {"content": "", "calls": [], "finish_reason": None})
        so_far["content"] += choice["delta"].get("content") or ""
        for part in choice["delta"].get("tool_calls", []):
            if part["index"] == len(so_far["calls"]):
                assert part["type"] == "function"
                so_far["calls"].append({"id": part["id"], "name": part["function"]["name"], "arguments": ""})
            else:
                assert part.keys() == {"index", "function"}
                assert part["function"].keys() == {"arguments"}
            so_far["calls"][part["index"]]["arguments"] += part["function"]["arguments"]
        so_far["finish_reason"] = choice["finish_reason"] or so_far["finish_reason"]
    return choices


class TestAnswers:
    TEXTS = ('Well.\n<tool_call>\n{"name": "get_weather", "argu', 'ments": {"city": "Pa', 'ris"}}\n</tool_call>')

    def test_whole(self) -> None:
        answer = post(backend(*self.TEXTS), PATH, TOOLS).json()
        (choice,) = answer["choices"]
        (call,) = choice["message"].pop("tool_calls")
        assert choice["message"] == {"role": "assistant", "content": "Well.\n"}
        assert choice["finish_reason"] == "tool_calls"
        assert call.pop("id").startswith("call_")
        assert call == {"type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
        assert answer["usage"]["completion_tokens"] == 3

    def test_content_is_null_beside_calls_alone(self) -> None:
        message = post(backend('<tool_call>{"name": "clock"}</tool_call>'), PATH, TOOLS).json()["choices"][0]["message"]
        assert message["content"] is None
        message = post(backend(""), PATH, TOOLS).json()["choices"][0]["message"]
        assert message == {"role": "assistant", "content": ""}

    def test_streamed(self) -> None:
        body = {**TOOLS, "stream": True, "stream_options": {"include_usage": True}}
        events = events_of(post(backend(*self.TEXTS), PATH, body))
        assert events.pop()["usage"]["completion_tokens"] == 3
        deltas = [event["choices"][0]["delta"] for event in events]
        assert deltas[:2] == [{"role": "assistant", "content": ""}, {"content": "Well.\n"}]
        (first,) = deltas[2]["tool_calls"]
        assert first.pop("id").startswith("call_")
        function = {"name": "get_weather", "arguments": '{"city": "Pa'}
        assert first == {"index": 0, "type": "function", "function": function}
        assert deltas[3] == {"tool_calls": [{"index": 0, "function": {"arguments": 'ris"}'}}]}
        assert [event["choices"][0]["finish_reason"] for event in events] == [None, None, None, "tool_calls"]

    def test_choices_are_read_apart(self) -> None:
        answer = post(backend(*self.TEXTS), PATH, {**TOOLS, "n": 3}).json()
        calls = [choice["message"]["tool_calls"][0] for choice in answer["choices"]]
        assert len({call["id"] for call in calls}) == 3
        assert {call["function"]["arguments"] for call in calls} == {'{"city": "Paris"}'}
        streamed = joined(events_of(post(backend(*self.TEXTS), PATH, {**TOOLS, "n": 3, "stream": True})))
        for choice in streamed.values():
            assert choice["content"] == "Well.\n"
            assert [call["arguments"] for call in choice["calls"]] == ['{"city": "Paris"}']
            assert choice["finish_reason"] == "tool_calls"

    def test_token_ids_come_with_text_that_is_held(self) -> None:
        body = {**TOOLS, "stream": True, "return_token_ids": True}
        events = events_of(post(backend("<tool", "_call>", "x"), PATH, body))
        assert [event["choices"][0].get("token_ids") for event in events] == [None, [0], [1], [2]]
        assert [event["choices"][0]["delta"].get("content") for event in events] == ["", None, None, "<tool_call>x"]

    def test_a_cut_answer_ends_with_length(self) -> None:
        answer = post(backend(*self.TEXTS[:2], finish_reason="length"), PATH, TOOLS).json()
        (choice,) = answer["choices"]
        assert choice["finish_reason"] == "length"
        assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Pa'

    def test_calls_are_text_if_there_are_to_be_none(self) -> None:
        answer = post(backend(*self.TEXTS), PATH, {**TOOLS, "tool_choice": "none"}).json()
        assert answer["choices"][0]["message"] == {"role": "assistant", "content": "".join(self.TEXTS)}
        assert answer["choices"][0]["finish_reason"] == "stop"
        answer = post(backend(*self.TEXTS, tool_format=None), PATH, CHAT).json()
        assert answer["choices"][0]["message"]["content"] == "".join(self.TEXTS)

    def test_forced_calls(self) -> None:
        required = backend('[{"name": "clock", "para', 'meters": {}}]', tool_format=None)
        (choice,) = post(required, PATH, {**TOOLS, "tool_choice": "required"}).json()["choices"]
        assert choice["message"]["tool_calls"][0]["function"] == {"name": "clock", "arguments": "{}"}
        assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")
        named = backend('{"city": ', '"Paris"}', tool_format=None)
        (choice,) = post(named, PATH, {**TOOLS, "tool_choice": NAMED}).json()["choices"]
        assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Paris"}'
        # as OpenAI has it
        assert choice["finish_reason"] == "stop"


class TestRequests:
    @pytest.mark.parametrize("choice", ["auto", "required", NAMED])
    def test_two_shapes_for_one_answer_are_refused(self, choice: Any) -> None:
        body = {**TOOLS, "tool_choice": choice, "response_format": {"type": "json_object"}}
        error = post(backend("x"), PATH, body).json()["error"]
        assert error["param"] == "response_format"
        assert "tool_choice none" in error["message"]
        structured, _ = self.structured_of(tool_choice="none", response_format={"type": "json_object"})
        assert structured is not None

    def structured_of(self, **fields: Any) -> tuple[StructuredOutput | None, ChatPrompt]:
        playing = backend("x")
        assert post(playing, PATH, {**TOOLS, **fields}).status_code == 200
        (call,) = playing.calls
        assert isinstance(call.prompt, ChatPrompt)
        return call.sampling.structured, call.prompt

    def test_tools_reach_the_replica_as_they_were_sent(self) -> None:
        strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
        structured, prompt = self.structured_of(tools=[strict, CLOCK])
        assert structured is None
        assert prompt.tool_choice == "auto"
        # Templates take a description and parameters for granted.
        clock = {"name": "clock", "description": "", "parameters": {"type": "object", "properties": {}}}
        assert prompt.tools == (WEATHER, {"type": "function", "function": clock})

    def test_a_named_function_forces_its_arguments(self) -> None:
        structured, prompt = self.structured_of(tool_choice=NAMED)
        assert structured is not None
        assert prompt.tool_choice == "named"
        assert structured.param == "tools[0].function.parameters"
        schema = json.loads(structured.spec)
        assert schema.pop("x-guidance")["whitespace_flexible"] is False
        assert schema == WEATHER["function"]["parameters"]
        structured, _ = self.structured_of(tool_choice={"type": "function", "function": {"name": "clock"}})
        assert structured is not None
        assert json.loads(structured.spec)["additionalProperties"] is False

    def test_a_required_call_forces_a_list_of_them(self) -> None:
        structured, _ = self.structured_of(tool_choice="required")
        assert structured is not None
        schema = json.loads(structured.spec)
        assert (schema["type"], schema["minItems"], schema["maxItems"]) == ("array", 1, 128)
        weather, clock = schema["items"]["anyOf"]
        assert weather["properties"]["name"]["enum"] == ["get_weather"]
        assert clock["properties"]["parameters"]["properties"] == {}
        # A reference means the same in its new place.
        reference = weather["properties"]["parameters"]["properties"]["city"]["$ref"]
        found: Any = schema
        for part in reference.removeprefix("#/").split("/"):
            found = found[int(part)] if isinstance(found, list) else found[part]
        assert found == {"type": "string"}
        structured, _ = self.structured_of(tool_choice="required", parallel_tool_calls=False)
        assert structured is not None
        assert json.loads(structured.spec)["maxItems"] == 1

    def test_what_cannot_be_enforced_matters_to_strict_functions_alone(self) -> None:
        lenient, _ = self.structured_of(tool_choice="required")
        strict, _ = self.structured_of(
            tool_choice="required", tools=[{**WEATHER, "function": {**WEATHER["function"], "strict": True}}]
        )
        assert lenient is not None
        assert strict is not None
        assert json.loads(lenient.spec)["x-guidance"]["lenient"] is True
        assert "lenient" not in json.loads(strict.spec)["x-guidance"]

    def test_calls_and_results_of_earlier_turns(self) -> None:
        called = {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None}
        result = {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "noon"}]}
        unknown = {"role": "tool", "tool_call_id": "call_2", "content": "dusk"}
        _, prompt = self.structured_of(messages=[*CHAT["messages"], called, result, unknown])
        _, told_call, told_result, told_unknown = prompt.messages
        function = {"name": "clock", "arguments": {"zone": "UTC"}}
        assert told_call == {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
        }
        # The name is found by the id: some templates insist on it.
        assert told_result == {"role": "tool", "content": "noon", "tool_call_id": "call_1", "name": "clock"}
        assert told_unknown == unknown

    def test_an_answer_of_ours_can_be_sent_back(self) -> None:
        message = post(backend(*TestAnswers.TEXTS), PATH, TOOLS).json()["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sunny"}
        _, prompt = self.structured_of(messages=[*CHAT["messages"], message, result])
        assert prompt.messages[1]["tool_calls"][0]["function"]["arguments"] == {"city": "Paris"}

    def test_a_call_without_arguments_has_none(self) -> None:
        call = {**CALL, "function": {"name": "clock", "arguments": ""}}
        _, prompt = self.structured_of(messages=[{"role": "assistant", "tool_calls": [call]}])
        assert prompt.messages[0]["tool_calls"][0]["function"]["arguments"] == {}


def _function(**fields: Any) -> dict[str, Any]:
    return {"tools": [WEATHER, {"type": "function", "function": {"name": "f", **fields}}]}


def _call(**fields: Any) -> dict[str, Any]:
    function = {**CALL["function"], **fields}  # type: ignore[dict-item]
    return {"messages": [*CHAT["messages"], {"role": "assistant", "tool_calls": [{**CALL, "function": function}]}]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": None, "tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": NAMED}, "tool_choice"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice.function.name"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
        ({"tools": [WEATHER] * 129}, "tools"),
        ({"tools": [WEATHER, {"type": "custom"}]}, "tools[1].type"),
        ({"tools": [WEATHER, {"type": "function"}]}, "tools[1].function"),
        ({"tools": "all"}, "tools"),
        (_function(name="get weather"), "tools[1].function.name"),
        (_function(name=""), "tools[1].function.name"),
        (_function(title="F"), "tools[1].function.title"),
        (_function(parameters=[]), "tools[1].function.parameters"),
        (_function(parameters={"type": "string"}), "tools[1].function.parameters.type"),
        (_function(parameters={"properties": ["a"]}), "tools[1].function.parameters.properties"),
        (_function(parameters={"properties": {"a": "string"}}), "tools[1].function.parameters.properties.a"),
        (_function(parameters={"required": "a"}), "tools[1].function.parameters.required"),
        (_call(arguments="{"), "messages[1].tool_calls[0].function.arguments"),
        (_call(arguments="[]"), "messages[1].tool_calls[0].function.arguments"),
        (_call(arguments={}), "messages[1].tool_calls[0].function.arguments"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant"}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": "x", "tool_call_id": "a"}]}, "messages[0].tool_call_id"),
        ({"functions": [{"name": "f"}]}, "functions"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    playing = backend("x")
    response = post(playing, PATH, {**TOOLS, **fields})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert error["message"]
    assert playing.calls == []
