"""Request bodies as a client sends them, and what the wire models make of them or refuse."""

import json
from typing import Any

import pytest

from goose_ray.api.chat import ChatCompletionRequest
from goose_ray.api.completions import CompletionRequest
from goose_ray.api.validation import parse_request
from goose_ray.errors import InvalidRequestError

__all__ = ["HELLO", "chat", "completion", "refusal_of_chat", "refusal_of_completion"]

HELLO = [{"role": "user", "content": "Hello"}]


def chat(**fields: Any) -> ChatCompletionRequest:
    body = json.dumps({"model": "m", "messages": HELLO, **fields}).encode()
    return parse_request(ChatCompletionRequest, "application/json", body)


def completion(**fields: Any) -> CompletionRequest:
    body = json.dumps({"model": "m", "prompt": "Hello", **fields}).encode()
    return parse_request(CompletionRequest, "application/json; charset=utf-8", body)


def refusal_of_chat(**fields: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as refused:
        chat(**fields).to_call("r")
    return refused.value


def refusal_of_completion(**fields: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as refused:
        completion(**fields).to_calls("r")
    return refused.value
