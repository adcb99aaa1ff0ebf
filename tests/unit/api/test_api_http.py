"""The HTTP surface over a scripted backend: shapes of answers and streams, and the views of the cluster."""

import asyncio
import json
from collections.abc import AsyncGenerator

import httpx
import pytest
from scripted_backend import (
    CHAT,
    LIMITS,
    MODEL,
    STATS,
    ScriptedBackend,
    events_of,
    post,
    request,
)

from goose_ray.api.answer import Answer
from goose_ray.api.calls import Delta, GenerateCall, PromptInfo
from goose_ray.api.http_app import build_http_app
from goose_ray.api.rendering import CompletionRenderer, RenderOptions
from goose_ray.errors import InvalidRequestError, OverloadedError


class TestChat:
    def test_whole_answer(self) -> None:
        answer = post(ScriptedBackend(), "/v1/chat/completions", CHAT).json()
        assert answer["object"] == "chat.completion"
        assert answer["model"] == MODEL
        assert answer["id"].startswith("chatcmpl-")
        (choice,) = answer["choices"]
        assert choice["message"] == {"role": "assistant", "content": "Héllo"}
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "END")
        assert answer["usage"] == {
            "prompt_tokens": 3,
            "completion_tokens": 5,
            "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 2},
        }
        assert "goose" not in answer
        assert "token_ids" not in choice

    def test_goose_stats_and_token_ids_on_request(self) -> None:
        body = {**CHAT, "return_goose_stats": True, "return_token_ids": True}
        answer = post(ScriptedBackend(), "/v1/chat/completions", body).json()
        assert answer["goose"] == {
            "steps": 2,
            "drafted": 6,
            "accepted": 3,
            "committed": 5,
            "tau": 2.5,
            "sources": {"context": {"attempted": 4, "accepted": 3}},
        }
        assert answer["choices"][0]["token_ids"] == [1, 2, 3, 4, 5]
        assert answer["prompt_token_ids"] == [7, 8, 9]

    def test_stream_is_a_role_chunk_and_one_chunk_a_step(self) -> None:
        events = events_of(post(ScriptedBackend(), "/v1/chat/completions", {**CHAT, "stream": True}))
        deltas = [event["choices"][0]["delta"] for event in events]
        assert deltas == [{"role": "assistant", "content": ""}, {"content": "Hé"}, {"content": "llo"}]
        assert [event["choices"][0]["finish_reason"] for event in events] == [None, None, "stop"]
        assert {event["object"] for event in events} == {"chat.completion.chunk"}
        assert len({event["id"] for event in events}) == 1
        assert not any("usage" in event for event in events)

    def test_stream_with_everything(self) -> None:
        body = {
            **CHAT,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "return_goose_stats": True,
        }
        events = events_of(post(ScriptedBackend(), "/v1/chat/completions", body))
        assert events[0]["prompt_token_ids"] == [7, 8, 9]
        assert [event["choices"][0].get("token_ids") for event in events[:-1]] == [None, [1, 2], [3, 4, 5]]
        assert [event["usage"] for event in events[:-1]] == [None] * 3
        assert events[-1]["choices"] == []
        assert events[-1]["usage"]["completion_tokens"] == 5
        assert events[2]["goose"]["tau"] == 2.5

    def test_every_chunk_may_tell_the_usage_so_far(self) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", {"model": MODEL, "prompt": ["a", "b"]})):
            request = {**body, "stream": True, "stream_options": options}
            usages = [event["usage"] for event in events_of(post(ScriptedBackend(), path, request))]
            totals = [usage["total_tokens"] for usage in usages]
            assert totals == sorted(totals)
            assert totals[0] >= 3 + 2
            assert usages[-1] == usages[-2]
            assert totals[-1] == 8 * (2 if "prompt" in body else 1)

    def test_a_prompt_counts_from_the_first_of_its_choices_to_begin(self) -> None:
        renderer = CompletionRenderer(
            RenderOptions(response_id="r", model=MODEL, choices_per_prompt=2, stream_usage=True)
        )
        answers = [Answer() for _ in range(4)]
        counted = []
        for index in (1, 3, 0):
            delta = Delta(text="x", token_ids=(index,), prompt=PromptInfo(5))
            answers[index].add(delta)
            chunk = json.loads(renderer.chunk(index, delta, answers).to_json())
            counted.append((chunk["usage"]["prompt_tokens"], chunk["usage"]["completion_tokens"]))
        assert counted == [(5, 1), (10, 2), (10, 3)]

    def test_steps_without_text_are_streamed_only_for_their_ids(self) -> None:
        script = [
            Delta(text="", token_ids=(1,), prompt=PromptInfo(1)),
            Delta(text="x", token_ids=(2,), finish_reason="length", stats=STATS),
        ]
        plain = events_of(post(ScriptedBackend(script), "/v1/chat/completions", {**CHAT, "stream": True}))
        with_ids = events_of(
            post(ScriptedBackend(script), "/v1/chat/completions", {**CHAT, "stream": True, "return_token_ids": True})
        )
        assert len(plain) == 2
        assert [event["choices"][0].get("token_ids") for event in with_ids] == [None, [1], [2]]


class TestCompletion:
    def test_prompts_are_answered_in_order(self) -> None:
        backend = ScriptedBackend()
        body = {"model": MODEL, "prompt": ["a", "b"], "return_token_ids": True, "return_goose_stats": True}
        answer = post(backend, "/v1/completions", body).json()
        assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [(0, "Héllo"), (1, "Héllo")]
        assert answer["choices"][1]["prompt_token_ids"] == [7, 8, 9]
        assert answer["usage"] == {
            "prompt_tokens": 6,
            "completion_tokens": 10,
            "total_tokens": 16,
            "prompt_tokens_details": {"cached_tokens": 4},
        }
        assert answer["goose"]["steps"] == 4
        assert [call.prompt for call in backend.calls] == ["a", "b"]

    def test_streams_of_several_prompts_are_told_apart_by_index(self) -> None:
        body = {"model": MODEL, "prompt": ["a", "b"], "stream": True, "stream_options": {"include_usage": True}}
        events = events_of(post(ScriptedBackend(), "/v1/completions", body))
        texts = {0: "", 1: ""}
        for event in events[:-1]:
            texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
        assert texts == {0: "Héllo", 1: "Héllo"}
        assert events[-1]["usage"]["total_tokens"] == 16

    def test_many_prompts_wait_for_one_another(self) -> None:
        """128 at once are more than the limits of an idle replica take."""

        class Crowded(ScriptedBackend):
            under_way = 0

            async def generate(self, call: GenerateCall) -> AsyncGenerator[Delta]:
                if self.under_way == 2:
                    raise OverloadedError("full")
                self.under_way += 1
                async for delta in super().generate(call):
                    await asyncio.sleep(0)
                    yield delta
                self.under_way -= 1

        answer = post(Crowded(), "/v1/completions", {"model": MODEL, "prompt": [f"{i}" for i in range(128)]})
        assert answer.status_code == 200
        assert [choice["text"] for choice in answer.json()["choices"]] == ["Héllo"] * 128

    def test_ids_that_no_replica_can_hold_are_not_sent_to_one(self) -> None:
        backend = ScriptedBackend()
        response = post(backend, "/v1/completions", {"model": MODEL, "prompt": [[5], [5] * 1001], "n": 64})
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "prompt")
        assert not backend.calls
        assert post(backend, "/v1/completions", {"model": MODEL, "prompt": [5] * 1000}).status_code == 200

    def test_one_failure_ends_all_prompts_of_the_request(self) -> None:
        class FailsSecond(ScriptedBackend):
            async def generate(self, call: GenerateCall) -> AsyncGenerator[Delta]:
                if call.prompt == "b":
                    raise InvalidRequestError("b is bad", "prompt")
                async for delta in super().generate(call):
                    yield delta

        backend = FailsSecond()
        backend.gate = asyncio.Event()  # the first prompt alone would never end
        response = post(backend, "/v1/completions", {"model": MODEL, "prompt": ["a", "b"]})
        assert response.status_code == 400
        assert len(backend.closed) == 1


class TestCluster:
    @pytest.mark.parametrize("path", ["/health", "/v1/models", f"/v1/models/{MODEL}", "/metrics"])
    def test_what_can_be_got_has_a_head(self, path: str) -> None:
        assert request(ScriptedBackend(), "HEAD", path).status_code == 200

    def test_models(self) -> None:
        listed = request(ScriptedBackend(), "GET", "/v1/models").json()["data"]
        assert [(model["id"], model["max_model_len"], model["created"]) for model in listed] == [(MODEL, 128, 1000)]
        assert request(ScriptedBackend(), "GET", f"/v1/models/{MODEL}").json() == listed[0]
        assert request(ScriptedBackend(), "GET", "/v1/models/other").status_code == 404

    def test_the_bare_address_says_where_the_rest_is(self) -> None:
        """Also when no replica is there; and what it names is."""
        told = request(ScriptedBackend(healthy=False), "GET", "/").json()
        assert told["model"] == MODEL
        assert set(told["routes"]) >= {"models", "chat", "dashboard", "health", "openapi"}
        for path in told["routes"].values():
            method = "POST" if "completions" in path else "GET"
            assert request(ScriptedBackend(), method, path).status_code == (415 if method == "POST" else 200), path

    def test_below_a_prefix_the_bare_address_names_it(self) -> None:
        app = build_http_app(ScriptedBackend(), MODEL, limits=LIMITS)

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app, root_path="/goose")
            async with httpx.AsyncClient(transport=transport, base_url="http://goose") as client:
                return await client.get("/goose/")

        assert asyncio.run(ask()).json()["routes"]["models"] == "/goose/v1/models"

    def test_a_model_that_nobody_can_run_is_not_listed_and_not_healthy(self, caplog: pytest.LogCaptureFixture) -> None:
        backend = ScriptedBackend(healthy=False)
        assert request(backend, "GET", "/v1/models").status_code == 503
        # whoever polls would fill the log with tracebacks
        (line,) = caplog.text.splitlines()
        assert "GET /v1/models failed: no replica is healthy" in line
        assert request(backend, "GET", "/health").status_code == 503
        assert request(ScriptedBackend(), "GET", "/health").json()["status"] == "ok"

    def test_metrics(self) -> None:
        response = request(ScriptedBackend(), "GET", "/metrics")
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert 'goose_num_requests_running{model_name="tiny",replica="r1"} 2.0' in response.text

    def test_steps(self) -> None:
        (replica,) = request(ScriptedBackend(), "GET", "/v1/goose/steps?last=1").json()["replicas"]
        (step,) = replica["steps"]
        assert step["rows"] == sum(part["prefill_rows"] + part["tree_nodes"] for part in step["sequences"])

    def test_acceptance(self) -> None:
        answer = request(ScriptedBackend(), "GET", "/v1/goose/acceptance").json()
        assert answer["remembered"]
        assert answer["replicas"][0]["incarnation"] == "life-1"
        assert answer["sources"]["context"]["attempted"] == 0
        assert answer["tuning_version"] == 0
        tuning = answer["replicas"][0]["tuning"]
        assert tuning["offsets"] == {"context": 0.0, "pool": 0.0, "transitions": 0.0}
        assert tuning["by_depth"][-1]["depth"] == [9, None]
