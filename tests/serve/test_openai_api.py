"""The OpenAI API of a running server, through the real `openai` client where it can say it and raw HTTP where not."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any, ClassVar

import httpx
import openai
import pytest

from goose.policies.registry import POLICIES
from serve.helpers import MODEL, Server, async_client, eventually

# a short context, so that filling it takes seconds
ENGINE = {"max_model_len": 1024}
# one replica, so that what its steps hold is known
SERVER = {"autoscaling_config": {"min_replicas": 1, "max_replicas": 1, "target_ongoing_requests": 8}}

# of deployments/goose.yaml
MAX_ONGOING = 32

QUESTION = "What is the capital of France?"
# what the model goes on copying: characters of four bytes in three tokens each, between letters of one
FACES = "a😀b😀a😀b😀a😀b😀a😀b😀a😀"


def events_of(lines: Iterator[str]) -> Iterator[Any]:
    for line in lines:
        if line and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def stream(server: Server, path: str, body: dict[str, Any]) -> list[Any]:
    with server.http.stream("POST", path, json={"model": MODEL, **body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        return list(events_of(response.iter_lines()))


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


class TestCompletions:
    def test_prompts_as_text_and_as_ids(self, server: Server, client: openai.OpenAI) -> None:
        text = "One, two, three, four,"
        first = client.completions.create(
            model=MODEL, prompt=text, temperature=0, max_tokens=8, extra_body={"return_token_ids": True}
        )
        ids = (first.choices[0].model_extra or {})["prompt_token_ids"]
        several = client.completions.create(model=MODEL, prompt=[ids, ids], temperature=0, max_tokens=8)
        assert [choice.text for choice in several.choices] == [first.choices[0].text] * 2
        assert [choice.index for choice in several.choices] == [0, 1]
        assert first.usage is not None
        assert several.usage is not None
        assert several.usage.prompt_tokens == 2 * len(ids) == 2 * first.usage.prompt_tokens

    def test_characters_of_several_tokens_are_streamed_whole(self, server: Server) -> None:
        body = {"prompt": FACES, "temperature": 0, "max_tokens": 24}
        whole = server.http.post("/v1/completions", json={"model": MODEL, **body}).json()["choices"][0]["text"]
        parts = [event["choices"][0]["text"] for event in stream(server, "/v1/completions", body)]
        assert "".join(parts) == whole
        assert any(ord(character) > 0xFFFF for character in whole), "the model did not go on with the faces"
        assert not any("\ufffd" in part for part in parts[:-1])

    def test_sixteen_tokens_by_default(self, server: Server) -> None:
        body = {"model": MODEL, "prompt": "A B C D", "temperature": 0, "ignore_eos": True}
        assert server.http.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 16


class TestBatch:
    def test_trees_of_several_sequences_share_a_forward_with_a_prefill(self, server: Server) -> None:
        async def load() -> None:
            async with async_client(server) as client:
                await asyncio.gather(
                    *(
                        client.chat.completions.create(
                            model=MODEL,
                            # prompts of different lengths, so that some are still computed when others decode
                            messages=[{"role": "user", "content": "Count slowly. " * (1 + 20 * number)}],
                            temperature=0,
                            max_tokens=16,
                            extra_body={"ignore_eos": True, "goose": {"policy": "goose"}},
                        )
                        for number in range(8)
                    )
                )

        asyncio.run(load())
        (replica,) = server.get("/v1/goose/steps?last=128")["replicas"]
        steps = replica["steps"]
        assert all(
            step["rows"] == sum(part["prefill_rows"] + part["tree_nodes"] for part in step["sequences"])
            for step in steps
        ), "a forward had rows that belong to no sequence"
        mixed = [
            step
            for step in steps
            if sum(part["tree_nodes"] > 1 for part in step["sequences"]) >= 3
            and any(part["prefill_rows"] for part in step["sequences"])
        ]
        assert mixed, "no forward held three trees and a prefill"

    def test_eight_at_once_say_what_each_says_alone(self, server: Server) -> None:
        questions = [f"What is {number} plus {number}?" for number in range(8)]
        alone = [server.chat(question, max_tokens=12)["choices"][0]["message"]["content"] for question in questions]

        async def together() -> list[str | None]:
            async with async_client(server) as client:
                answers = await asyncio.gather(
                    *(
                        client.chat.completions.create(
                            model=MODEL, messages=[{"role": "user", "content": q}], temperature=0, max_tokens=12
                        )
                        for q in questions
                    )
                )
            return [answer.choices[0].message.content for answer in answers]

        assert asyncio.run(together()) == alone


HELLO = {"messages": [{"role": "user", "content": "Hello"}]}
BAD_REQUESTS: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "empty messages": ("/v1/chat/completions", {"messages": []}, 400, "messages"),
    "no messages": ("/v1/chat/completions", {}, 400, "messages"),
    "a wrong type": ("/v1/chat/completions", {**HELLO, "max_tokens": "many"}, 400, "max_tokens"),
    "max_tokens 0": ("/v1/chat/completions", {**HELLO, "max_tokens": 0}, 400, "max_tokens"),
    "temperature -1": ("/v1/chat/completions", {**HELLO, "temperature": -1}, 400, "temperature"),
    "an unknown role": ("/v1/chat/completions", {"messages": [{"role": "x", "content": "y"}]}, 400, "messages[0].role"),
    "an unknown field": ("/v1/chat/completions", {**HELLO, "temprature": 1}, 400, "temprature"),
    "an unknown policy": ("/v1/chat/completions", {**HELLO, "goose": {"policy": "swan"}}, 400, "goose.policy"),
    "an unknown model": ("/v1/chat/completions", {**HELLO, "model": "gpt-9"}, 404, "model"),
    "what is not there yet": ("/v1/chat/completions", {**HELLO, "reasoning_effort": "low"}, 400, "reasoning_effort"),
    "too long a chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "a " * 1100}]},
        400,
        "messages",
    ),
    "too long a prompt": ("/v1/completions", {"prompt": [1] * 1024}, 400, "prompt"),
    "too many tokens wanted": ("/v1/completions", {"prompt": "a", "max_tokens": 100_000}, 400, "max_tokens"),
    "an id out of the vocabulary": ("/v1/completions", {"prompt": [1, 10**7]}, 400, "prompt"),
}


class TestErrors:
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("case", list(BAD_REQUESTS))
    def test_a_bad_request_is_told_its_field_and_a_good_one_follows(
        self, server: Server, case: str, stream: bool
    ) -> None:
        path, fields, status, param = BAD_REQUESTS[case]
        response = server.http.post(path, json={"model": MODEL, "stream": stream, **fields})
        assert response.status_code == status
        error = response.json()["error"]
        assert error["param"] == param
        assert error["type"] == "invalid_request_error"
        assert error["message"]
        if case.startswith("too"):
            assert error["code"] == "context_length_exceeded"
        assert server.chat("Hi", max_tokens=1)["choices"]

    @pytest.mark.parametrize(
        ("content_type", "body", "status", "param"),
        [
            ("application/json", b'{"model": ', 400, "body"),
            ("application/json", b"", 400, "body"),
            ("text/plain", b"hello", 415, "content-type"),
        ],
    )
    def test_a_body_that_is_no_json(
        self, server: Server, content_type: str, body: bytes, status: int, param: str
    ) -> None:
        response = server.http.post("/v1/chat/completions", content=body, headers={"content-type": content_type})
        assert (response.status_code, response.json()["error"]["param"]) == (status, param)
        assert server.chat("Hi", max_tokens=1)["choices"]

    def test_the_client_library_knows_our_errors(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError) as bad:
            client.chat.completions.create(model=MODEL, messages=[], temperature=0)
        assert bad.value.param == "messages"
        with pytest.raises(openai.NotFoundError) as missing:
            client.completions.create(model="gpt-9", prompt="x")
        assert missing.value.code == "model_not_found"

    def test_bad_requests_leave_nothing_behind(self, server: Server) -> None:
        finished = server.metric("vllm:request_success_total")

        async def send() -> set[int]:
            async with httpx.AsyncClient(base_url=server.url, timeout=120) as http:
                bodies = [{"model": MODEL, "prompt": [1, 10**7], "stream": bool(i % 2)} for i in range(300)]
                rounds = [bodies[start : start + 20] for start in range(0, len(bodies), 20)]
                statuses: set[int] = set()
                for part in rounds:
                    answers = await asyncio.gather(*(http.post("/v1/completions", json=body) for body in part))
                    statuses |= {answer.status_code for answer in answers}
                return statuses

        assert asyncio.run(send()) == {400}
        assert server.is_idle()
        assert server.metric("vllm:request_success_total") == finished


LONG = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 900, "ignore_eos": True}


class TestDisconnect:
    def steps_so_far(self, server: Server) -> int:
        return int(server.metric("goose_steps_total"))

    @pytest.mark.parametrize("policy", ["autoregressive", "goose"])
    def test_in_mid_stream(self, server: Server, policy: str) -> None:
        assert server.is_idle()
        body = {"model": MODEL, **LONG, "stream": True, "goose": {"policy": policy}}
        with server.http.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200
            events = events_of(response.iter_lines())
            for _ in range(4):
                next(events)
            assert server.metric("vllm:num_requests_running") == 1
            assert server.metric("goose_kv_slots_used") > 0
        eventually(lambda: server.is_idle(), within_s=10, what="the sequence and its slots to be free")
        steps = self.steps_so_far(server)
        server.chat("Hi", max_tokens=1)
        assert self.steps_so_far(server) <= steps + 2, "the abandoned request went on being computed"

    @pytest.mark.parametrize("stream", [False, True])
    def test_while_waiting_for_the_answer(self, server: Server, stream: bool) -> None:
        def is_running() -> bool:
            return server.metric("vllm:num_requests_running") == 1

        async def scenario() -> None:
            async with httpx.AsyncClient(base_url=server.url, timeout=120) as http:
                body = {"model": MODEL, **LONG, "stream": stream}
                sending = asyncio.create_task(http.post("/v1/chat/completions", json=body))
                await asyncio.to_thread(eventually, is_running, within_s=30, what="the request to run")
                sending.cancel()
                await asyncio.wait([sending])

        asyncio.run(scenario())
        eventually(lambda: server.is_idle(), within_s=10, what="the sequence and its slots to be free")


class TestCluster:
    def test_models_and_health(self, server: Server, client: openai.OpenAI) -> None:
        assert [model.id for model in client.models.list()] == [MODEL]
        assert client.models.retrieve(MODEL).id == MODEL
        assert server.get("/health") == {"status": "ok", "replicas": {"live": 1, "healthy": 1}}

    def test_metrics_count_what_was_delivered(self, server: Server) -> None:
        names = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total", "goose_time_to_first_token_seconds_count")
        before = [server.metric(name) for name in names]
        usage = server.chat("Hi", max_tokens=5)["usage"]
        after = [server.metric(name) for name in names]
        assert [b - a for a, b in zip(before, after, strict=True)] == [
            usage["completion_tokens"],
            usage["prompt_tokens"],
            1,
        ]

    def test_a_full_replica_is_still_seen_and_healthy(self, server: Server) -> None:
        """Control calls wait for a place as requests do; what is shown then is what the aggregator remembers."""
        body = {"model": MODEL, **LONG, "stream": True, "goose": {"policy": "autoregressive"}}

        async def scenario() -> list[httpx.Response]:
            async with httpx.AsyncClient(base_url=server.url, timeout=120) as http:
                filling = [
                    asyncio.create_task(http.post("/v1/chat/completions", json=body)) for _ in range(MAX_ONGOING)
                ]
                await asyncio.to_thread(eventually, is_full, within_s=60, what="a full replica")
                answers = [await http.get(path) for path in ("/health", "/metrics", "/v1/models")]
                for request in filling:
                    request.cancel()
                await asyncio.wait(filling)
            return answers

        def is_full() -> bool:
            return (
                server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting") == MAX_ONGOING
            )

        assert [answer.status_code for answer in asyncio.run(scenario())] == [200, 200, 200]
        eventually(server.is_idle, within_s=30, what="the abandoned requests to be gone")
