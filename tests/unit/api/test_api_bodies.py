"""Reading a request body: what is refused before and while it is parsed."""

import asyncio
import json
import math
import threading
from typing import Any

import pytest
from pydantic import ValidationError, field_validator
from wire_requests import HELLO, refusal_of_chat

from goose_ray.api.chat import ChatCompletionRequest
from goose_ray.api.completions import CompletionRequest
from goose_ray.api.validation import RequestParser, WireModel, parse_request
from goose_ray.errors import InvalidRequestError


class TestBody:
    @pytest.mark.parametrize("body", [b"", b"{", b"[1", b'{"model": "m",}', b"\xff\xfe"])
    def test_no_json(self, body: bytes) -> None:
        with pytest.raises(InvalidRequestError, match="not valid JSON") as refused:
            parse_request(ChatCompletionRequest, "application/json", body)
        assert refused.value.param == "body"

    def test_json_of_another_kind(self) -> None:
        with pytest.raises(InvalidRequestError) as refused:
            parse_request(ChatCompletionRequest, "application/json", b"[1, 2]")
        assert refused.value.param == "body"

    @pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded"])
    def test_another_content_type(self, content_type: str | None) -> None:
        with pytest.raises(InvalidRequestError, match="application/json") as refused:
            parse_request(ChatCompletionRequest, content_type, b"{}")
        assert (refused.value.status, refused.value.param) == (415, "content-type")

    def test_a_long_value_is_not_repeated_in_full(self) -> None:
        assert len(str(refusal_of_chat(temperature="x" * 10_000))) < 300

    @pytest.mark.parametrize(("value", "shown"), [(None, "null"), (True, "true"), ({"a": ["é"]}, '{"a": ["é"]}')])
    def test_a_wrong_value_is_shown_as_it_was_written(self, value: Any, shown: str) -> None:
        assert str(refusal_of_chat(messages=value)).endswith(f", not {shown}")

    @pytest.mark.parametrize(
        ("fields", "told"),
        [
            ({"messages": []}, "Invalid value for 'messages': it needs at least 1 item, not none"),
            ({"stream_options": {"include_usage": True}}, 'or leave them out, not {"include_usage": true}'),
            ({"messages": [{"role": "user", "content": None}]}, "a list of text parts, not null"),
        ],
    )
    def test_the_value_at_fault_is_shown_and_not_all_around_it(self, fields: dict[str, Any], told: str) -> None:
        assert str(refusal_of_chat(**fields)).endswith(told)

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"temperature": math.nan}, "temperature"),
            ({"presence_penalty": math.nan}, "presence_penalty"),
            ({"logit_bias": {"5": math.nan}}, "logit_bias.5"),
            (
                {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"const": math.nan}}}]},
                "tools[0].function.parameters",
            ),
        ],
    )
    def test_what_is_no_number_is_refused_by_the_name_that_was_sent(self, fields: dict[str, Any], param: str) -> None:
        error = refusal_of_chat(**fields)
        assert error.param == param
        assert "finite number" in str(error)
        assert "NaN" in str(error)

    @pytest.mark.parametrize(
        "fields",
        [
            {"messages": [1] * 10_000},
            {"messages": [{}] * 10_000},
            {"messages": [{"role": "user", "content": "x", **{f"mood{i}": 1 for i in range(10_000)}}]},
            {"messages": [{"role": "user", "content": [1] * 10_000}]},
            {"messages": HELLO * 20_000},
            {f"mood{i}": 1 for i in range(10_000)},
            {"stop_token_ids": [""] * 10_000},
            {"stop_token_ids": [1] * 10_000},
            {"stop": [1] * 10_000},
            {"modalities": [1] * 10_000},
            {"logit_bias": {f"{i}": "" for i in range(10_000)}},
            {"logit_bias": {f"x{i}": 1 for i in range(10_000)}},
            {"goose": {f"mood{i}": 1 for i in range(10_000)}},
        ],
    )
    def test_a_body_full_of_faults_is_refused_for_the_first(self, fields: dict[str, Any]) -> None:
        """Millions of collected errors once froze the server for minutes and filled its memory."""
        body = json.dumps({"model": "m", "messages": HELLO, **fields})
        with pytest.raises(ValidationError) as refused:
            ChatCompletionRequest.model_validate_json(body)
        assert refused.value.error_count() < 3

    @pytest.mark.parametrize("prompt", [[1.5] * 10_000, [""] * 10_000, [[1.5] * 10_000], [[-1] * 10_000]])
    def test_a_prompt_full_of_faults_is_refused_for_the_first(self, prompt: Any) -> None:
        with pytest.raises(ValidationError) as refused:
            CompletionRequest.model_validate_json(json.dumps({"model": "m", "prompt": prompt}))
        assert refused.value.error_count() == 1

    @pytest.mark.parametrize(("num_bytes", "elsewhere"), [(100, False), (1_000_000, True)])
    def test_a_large_body_is_parsed_in_another_thread(self, num_bytes: int, elsewhere: bool) -> None:
        threads = []

        class Request(WireModel):
            text: str

            @field_validator("text")
            @classmethod
            def _note_thread(cls, value: str) -> str:
                threads.append(threading.get_ident())
                return value

        body = json.dumps({"text": "x" * num_bytes}).encode()
        parsed = asyncio.run(RequestParser().parse(Request, "application/json", body))
        assert len(parsed.text) == num_bytes
        assert [thread != threading.get_ident() for thread in threads] == [elsewhere]
