"""Chat answers and tool calls, through the real `openai` client where it can say it and raw HTTP where not."""

import json
from typing import Any, ClassVar

import openai
import pytest

from goose.policies.registry import POLICIES
from serve.helpers import MODEL, Server

QUESTION = "What is the capital of France?"


class TestChat:
    def test_first_light(self, client: openai.OpenAI) -> None:
        answer = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=24
        )
        (choice,) = answer.choices
        assert "Paris" in (choice.message.content or "")
        assert choice.finish_reason == "stop"
        assert answer.usage is not None
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
        assert 0 < answer.usage.completion_tokens < 24

    @pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 0.9, "seed": 5}])
    def test_a_stream_says_what_the_whole_answer_says(self, client: openai.OpenAI, options: dict[str, Any]) -> None:
        request: dict[str, Any] = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Describe a duck."}],
            "max_tokens": 20,
            "extra_body": {"return_token_ids": True},
            **options,
        }
        whole = client.chat.completions.create(**request)
        chunks = list(client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}))
        deltas = [chunk.choices[0] for chunk in chunks if chunk.choices]
        assert "".join(choice.delta.content or "" for choice in deltas) == whole.choices[0].message.content
        assert deltas[0].delta.role == "assistant"
        assert [choice.finish_reason for choice in deltas[:-1]] == [None] * (len(deltas) - 1)
        assert deltas[-1].finish_reason == whole.choices[0].finish_reason
        token_ids = [token for choice in deltas for token in (choice.model_extra or {}).get("token_ids", [])]
        assert token_ids == (whole.choices[0].model_extra or {})["token_ids"]
        assert whole.usage is not None
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
        # The prompt was computed a moment ago, by this replica or the other.
        assert whole.usage.prompt_tokens_details is not None
        assert chunks[-1].usage.prompt_tokens_details is not None
        assert len(token_ids) == whole.usage.completion_tokens == 20

    def test_a_prompt_sent_again_is_cached_for_its_own_salt(self, server: Server) -> None:
        hits = server.metric("vllm:prefix_cache_hits_total")
        answers = [
            server.chat("Name a river.", max_tokens=8, temperature=0, cache_salt=salt, priority=-1)
            for salt in ("mine", "mine", "yours")
        ]
        usages = [answer["usage"] for answer in answers]
        length = usages[0]["prompt_tokens"]
        assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages] == [0, length - 1, 0]
        assert len({answer["choices"][0]["message"]["content"] for answer in answers}) == 1
        assert server.metric("vllm:prefix_cache_hits_total") == hits + length - 1

    def test_goose_stats_add_up(self, server: Server) -> None:
        answer = server.chat("Count from one to ten.", max_tokens=24, return_goose_stats=True)
        goose = answer["goose"]
        assert goose["committed"] == answer["usage"]["completion_tokens"]
        assert goose["tau"] == pytest.approx(goose["committed"] / goose["steps"])
        # a step commits its accepted tokens and, unless the answer ends before it, one bonus token
        assert goose["steps"] - 1 <= goose["committed"] - goose["accepted"] <= goose["steps"]
        assert goose["drafted"] >= goose["accepted"]
        assert all(0 <= source["accepted"] <= source["attempted"] for source in goose["sources"].values())

    @pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 0.8, "seed": 11}])
    def test_the_policy_changes_no_token(self, server: Server, options: dict[str, Any]) -> None:
        answers = [
            server.chat(
                "Write a haiku about rivers.", max_tokens=24, return_token_ids=True, goose={"policy": policy}, **options
            )
            for policy in POLICIES
        ]
        ids = [answer["choices"][0]["token_ids"] for answer in answers]
        assert ids == ids[:1] * len(POLICIES)
        assert [a["choices"][0]["message"] for a in answers] == [answers[0]["choices"][0]["message"]] * len(POLICIES)

    def test_a_seed_decides_the_text_and_its_absence_does_not(self, server: Server) -> None:
        def text(**options: Any) -> str:
            answer = server.chat("Make up a name.", temperature=1.5, max_tokens=12, ignore_eos=True, **options)
            return str(answer["choices"][0]["message"]["content"])

        assert text(seed=1) == text(seed=1)
        assert len({text() for _ in range(3)}) > 1

    def test_a_stop_string_is_cut_from_text_and_ids(self, server: Server) -> None:
        full = server.chat(QUESTION, max_tokens=24, return_token_ids=True)["choices"][0]
        cut = server.chat(QUESTION, max_tokens=24, stop=[" is"], return_token_ids=True)
        (choice,) = cut["choices"]
        assert choice["message"]["content"] == full["message"]["content"].split(" is")[0]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", " is")
        assert choice["token_ids"] == full["token_ids"][: len(choice["token_ids"])]
        assert cut["usage"]["completion_tokens"] == len(choice["token_ids"]) < len(full["token_ids"])

    def test_without_a_limit_the_context_is_the_limit(self, server: Server) -> None:
        context = server.get("/v1/models")["data"][0]["max_model_len"]
        # almost all of the context is prompt
        prompt = [314] * (context - 5)
        response = server.http.post("/v1/completions", json={"model": MODEL, "prompt": prompt, "temperature": 0})
        assert response.status_code == 200, response.text
        assert response.json()["usage"]["completion_tokens"] <= 5
        assert response.json()["usage"]["prompt_tokens"] == context - 5


class TestTools:
    """On a model whose template shows it no tools, and which was never trained on any: the schema does it."""

    WEATHER: ClassVar[Any] = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["celsius", "kelvin"]}},
                "required": ["city", "unit"],
                "additionalProperties": False,
            },
        },
    }

    @pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
    def test_a_forced_call_keeps_to_its_schema_streamed_and_not(self, client: openai.OpenAI, choice: Any) -> None:
        messages: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
        request: dict[str, Any] = {
            "model": MODEL,
            "tools": [self.WEATHER],
            "tool_choice": choice,
            "parallel_tool_calls": False,
            "temperature": 0,
            "max_tokens": 60,
        }
        (whole,) = client.chat.completions.create(messages=messages, **request).choices
        (call,) = whole.message.tool_calls or []
        assert call.type == "function"
        assert call.function.name == "get_weather"
        arguments = json.loads(call.function.arguments)
        assert arguments.keys() == {"city", "unit"}
        assert isinstance(arguments["city"], str)
        assert len(arguments["city"]) <= 12
        assert arguments["unit"] in ("celsius", "kelvin")
        assert whole.finish_reason == ("tool_calls" if choice == "required" else "stop")

        with client.chat.completions.stream(messages=messages, **request) as stream:
            (streamed,) = stream.get_final_completion().choices
        (again,) = streamed.message.tool_calls or []
        assert (again.function.name, again.function.arguments) == (call.function.name, call.function.arguments)
        assert streamed.finish_reason == whole.finish_reason

        result = {"role": "tool", "tool_call_id": call.id, "content": "12 degrees"}
        messages += [whole.message.model_dump(exclude_none=True), result]
        answer = client.chat.completions.create(
            messages=messages, **{**request, "tool_choice": "auto", "max_tokens": 8}
        )
        assert answer.choices[0].message.content

    def test_what_cannot_be_is_refused(self, client: openai.OpenAI) -> None:
        function: Any = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "nonsense"}}}}
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "Hi"}],
                tools=[{"type": "function", "function": function}],
                tool_choice={"type": "function", "function": {"name": "f"}},
            )
        assert refused.value.param == "tools[0].function.parameters"
        assert "nonsense" in refused.value.message
