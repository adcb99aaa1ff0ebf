"""`/v1/responses` through the real `openai` client: items whole and streamed, and what becomes of the request."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import openai
import pytest
from scripted_backend import MODEL, STATS, ScriptedBackend, client_of, post

from goose_ray.api.calls import ChatPrompt, Delta, PromptInfo, ScoredToken, TokenScores
from goose_ray.errors import EngineDeadError, InvalidRequestError, OverloadedError

PATH = "/v1/responses"
CLOCK: dict[str, Any] = {"type": "function", "name": "clock", "parameters": {"type": "object", "properties": {}}}
T = TypeVar("T")


def script_of(*texts: str, finish_reason: Any = "stop", scores: Any = None) -> ScriptedBackend:
    script: list[Delta | Exception] = [
        Delta(
            text=text,
            token_ids=(number,),
            prompt=None if number else PromptInfo(3, num_cached=2, tool_format="hermes"),
            finish_reason=finish_reason if number == len(texts) - 1 else None,
            stats=STATS if number == len(texts) - 1 else None,
            scores=scores,
        )
        for number, text in enumerate(texts)
    ]
    return ScriptedBackend(script)


def with_client(backend: ScriptedBackend, scenario: Callable[[openai.AsyncOpenAI], Awaitable[T]]) -> T:
    async def main() -> T:
        async with client_of(backend) as http:
            client = openai.AsyncOpenAI(
                base_url="http://goose/v1",
                api_key="none",
                max_retries=0,
                http_client=http,  # type: ignore[arg-type]
            )
            return await scenario(client)

    return asyncio.run(main())


def created(backend: ScriptedBackend, **request: Any) -> Any:
    return with_client(backend, lambda client: client.responses.create(model=MODEL, **{"input": "Hi", **request}))


def events_of(backend: ScriptedBackend, **request: Any) -> list[Any]:
    async def scenario(client: openai.AsyncOpenAI) -> list[Any]:
        stream = await client.responses.create(model=MODEL, stream=True, **{"input": "Hi", **request})
        return [event async for event in stream]

    return with_client(backend, scenario)


def refusal(**request: Any) -> Any:
    response = post(ScriptedBackend(), PATH, {"model": MODEL, "input": "Hi", **request})
    assert response.status_code == 400, response.text
    return response.json()["error"]


def said_by(response: Any) -> list[tuple[str, str]]:
    return [(item.type, item.content[0].text if item.type == "message" else item.arguments) for item in response.output]


class TestWhole:
    def test_a_text(self) -> None:
        response = created(script_of("Hé", "llo"), instructions="Be brief", max_output_tokens=9, metadata={"a": "b"})
        assert response.output_text == "Héllo"
        assert (response.object, response.status, response.model) == ("response", "completed", MODEL)
        (item,) = response.output
        assert (item.type, item.role, item.status) == ("message", "assistant", "completed")
        usage = response.usage
        assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (3, 2, 5)
        assert usage.input_tokens_details.cached_tokens == 2
        assert (response.instructions, response.max_output_tokens, response.metadata) == ("Be brief", 9, {"a": "b"})
        assert not response.store

    def test_an_answer_that_was_cut_is_incomplete(self) -> None:
        response = created(script_of("Hé", finish_reason="length"))
        assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert response.output[0].status == "incomplete"

    def test_an_empty_answer_is_an_empty_message(self) -> None:
        response = created(script_of(""))
        assert (len(response.output), response.output_text) == (1, "")

    def test_calls_of_functions_are_items(self) -> None:
        backend = script_of('Look: <tool_call>{"name": "clock", "argum', 'ents": {"zone": "UTC"}}</tool_call>')
        response = created(backend, tools=[CLOCK])
        message, call = response.output
        assert message.content[0].text == "Look: "
        assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "clock", {"zone": "UTC"})
        assert call.call_id.startswith("call_")

    def test_logprobs(self) -> None:
        token = ScoredToken("é".encode(), -0.5)
        backend = script_of("é", scores=(TokenScores(token, (token,), 0),))
        response = created(backend, top_logprobs=1, include=["message.output_text.logprobs"])
        (entry,) = response.output[0].content[0].logprobs
        assert (entry.token, entry.logprob, entry.top_logprobs[0].token) == ("é", -0.5, "é")
        assert backend.calls[0].sampling.logprobs == 1


class TestRequest:
    def test_it_is_a_chat_in_other_words(self) -> None:
        backend = script_of("x")
        created(
            backend,
            instructions="Be brief",
            input=[
                {
                    "role": "user",
                    "content": [{"type": "input_text", "text": "What "}, {"type": "input_text", "text": "time?"}],
                },
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Look:"}]},
                {"type": "function_call", "call_id": "c1", "name": "clock", "arguments": "{}"},
                {"type": "function_call", "call_id": "c2", "name": "clock", "arguments": '{"zone": 1}'},
                {"type": "function_call_output", "call_id": "c2", "output": "noon"},
                {"role": "developer", "content": "Go on"},
            ],
            max_output_tokens=7,
            temperature=0.5,
            top_p=0.9,
            extra_body={
                "goose": {"policy": "chain", "budget": 5},
                "cache_salt": "s",
                "seed": 3,
                "ignore_eos": True,
                "stop": None,
            },
        )
        (call,) = backend.calls
        assert isinstance(call.prompt, ChatPrompt)
        system, user, assistant, tool, developer = call.prompt.messages
        assert (system["role"], system["content"]) == ("system", "Be brief")
        assert user["content"] == "What time?"
        assert assistant["content"] == "Look:"
        assert [made["id"] for made in assistant["tool_calls"]] == ["c1", "c2"]
        assert tool == {"role": "tool", "content": "noon", "tool_call_id": "c2", "name": "clock"}
        assert developer["role"] == "system"
        sampling = call.sampling
        assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.seed) == (7, 0.5, 0.9, 3)
        assert sampling.ignore_eos
        assert (call.policy, call.budget, call.cache_salt) == ("chain", 5, "s")

    def test_a_schema_and_a_forced_function(self) -> None:
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
        backend = script_of("{}")
        created(backend, text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}})
        shape = backend.calls[0].sampling.structured
        assert shape is not None
        assert (shape.kind, json.loads(shape.spec)) == ("json_schema", schema)
        backend = script_of('{"zone": "UTC"}')
        response = created(backend, tools=[CLOCK], tool_choice={"type": "function", "name": "clock"})
        assert (response.output[0].name, response.output[0].arguments) == ("clock", '{"zone": "UTC"}')

    def test_what_a_response_said_can_be_sent_back(self) -> None:
        first = created(script_of('<tool_call>{"name": "clock", "arguments": {}}</tool_call>'), tools=[CLOCK])
        call = first.output[0]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "noon"}
        backend = script_of("x")
        created(backend, input=[{"role": "user", "content": "Hi"}, *(item.to_dict() for item in first.output), result])
        prompt = backend.calls[0].prompt
        assert isinstance(prompt, ChatPrompt)
        assert [message["role"] for message in prompt.messages] == ["user", "assistant", "tool"]

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"previous_response_id": "resp_1"}, "previous_response_id"),
            ({"background": True}, "background"),
            ({"conversation": "c"}, "conversation"),
            ({"reasoning": {"effort": "high"}}, "reasoning"),
            ({"truncation": "auto"}, "truncation"),
            ({"max_tokens": 3}, "max_tokens"),
            ({"max_output_tokens": 0}, "max_output_tokens"),
            ({"temperature": 3}, "temperature"),
            ({"input": 3}, "input"),
            ({"input": []}, "input"),
            ({"input": [{"type": "reasoning", "content": [{"type": "text"}]}]}, "input[0].content[0].type"),
            ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
            ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content"),
            (
                {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}]},
                "input[0].arguments",
            ),
            (
                {
                    "instructions": "x",
                    "input": [
                        {"role": "user", "content": "x"},
                        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "[]"},
                    ],
                },
                "input[1].arguments",
            ),
            ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
            ({"tools": [CLOCK, CLOCK]}, "tools[1].name"),
            ({"include": ["message.output_text.logprobs", "x"]}, "include[1]"),
            ({"tools": [CLOCK], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
            ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
            ({"goose": {"budget": 65}}, "goose.budget"),
        ],
    )
    def test_a_wrong_field_is_named(self, fields: dict[str, Any], param: str) -> None:
        error = refusal(**fields)
        assert error["param"] == param
        assert "messages" not in error["message"]
        assert "completion_tokens" not in error["message"]

    def test_what_the_replica_refuses_is_said_in_its_words(self) -> None:
        backend = ScriptedBackend(
            [InvalidRequestError("your messages are too long", "messages", "context_length_exceeded")]
        )
        for stream in (False, True):
            response = post(backend, PATH, {"model": MODEL, "input": "Hi", "stream": stream})
            assert response.status_code == 400
            assert response.json()["error"]["param"] == "input"

    def test_statuses_are_those_of_chats(self) -> None:
        assert post(ScriptedBackend(), PATH, {"model": "other", "input": "Hi"}).status_code == 404
        assert len(post(ScriptedBackend(), PATH, {"model": "m" * 100_000, "input": "Hi"}).content) < 500
        assert (
            post(ScriptedBackend([OverloadedError("full")]), PATH, {"model": MODEL, "input": "Hi"}).status_code == 429
        )


class TestStream:
    def test_events_come_in_openais_order(self) -> None:
        events = events_of(script_of("Hé", "", "llo"))
        assert [event.type for event in events] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Héllo"
        assert events[-1].response.output_text == events[6].text == "Héllo"
        assert events[-1].response.usage.total_tokens == 6
        assert len({event.item_id for event in events if hasattr(event, "item_id")}) == 1

    @pytest.mark.parametrize("size", [1, 3, 1000])
    def test_a_stream_says_what_the_whole_answer_says(self, size: int) -> None:
        calls = [
            f'<tool_call>{{"name": "clock", "arguments": {arguments}}}</tool_call>' for arguments in ("{}", '{"a": 1}')
        ]
        text = "Look: " + "\n".join(calls)
        parts = [text[start : start + size] for start in range(0, len(text), size)]
        events = events_of(script_of(*parts), tools=[CLOCK])
        final = events[-1].response
        whole = created(script_of(text), tools=[CLOCK])
        assert said_by(final) == said_by(whole)
        assert [item.type for item in final.output] == ["message", "function_call", "function_call"]
        for index, item in enumerate(final.output):
            deltas = [event.delta for event in events if event.type.endswith(".delta") and event.output_index == index]
            assert "".join(deltas) == (item.content[0].text if item.type == "message" else item.arguments)
            done = [e.item for e in events if e.type == "response.output_item.done" and e.output_index == index]
            assert done == [item]

    def test_the_clients_own_reading_of_it(self) -> None:
        async def scenario(client: openai.AsyncOpenAI) -> Any:
            async with client.responses.stream(model=MODEL, input="Hi", tools=[CLOCK]) as stream:  # type: ignore[list-item]
                async for _ in stream:
                    pass
                return await stream.get_final_response()

        backend = script_of('Hé <tool_call>{"name": "clock", ', '"arguments": {"a": 1}}</tool_call>')
        final = with_client(backend, scenario)
        assert [item.type for item in final.output] == ["message", "function_call"]
        assert json.loads(final.output[1].arguments) == {"a": 1}

    def test_a_failure_on_the_way_is_told_in_the_last_event(self) -> None:
        backend = script_of("Hé", "llo")
        backend.script = [backend.script[0], EngineDeadError("the engine died")]
        events = events_of(backend)
        assert events[-1].type == "response.failed"
        assert events[-1].response.error.message == "the engine died"
        assert events[-1].response.output[0].content[0].text == "Hé"
        assert events[-2].item.status == "incomplete"

    def test_one_that_was_cut_ends_incomplete(self) -> None:
        assert events_of(script_of("Hé", finish_reason="length"))[-1].type == "response.incomplete"
