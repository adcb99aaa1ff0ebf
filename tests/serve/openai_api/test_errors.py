"""What is refused, and that nothing is left of it."""

import asyncio
from typing import Any

import httpx
import openai
import pytest

from serve.helpers import MODEL, Server

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
