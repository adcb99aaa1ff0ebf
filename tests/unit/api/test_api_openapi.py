"""The OpenAPI document says what is served: routes, bodies, answers and statuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from scripted_backend import CHAT, LIMITS, MODEL, ScriptedBackend, post, request

from goose_ray.api.auth.key_ring import KeyRing
from goose_ray.api.chat import ChatCompletionRequest
from goose_ray.api.completions import CompletionRequest
from goose_ray.api.http_app import build_http_app
from goose_ray.api.known_fields import KnownFields
from goose_ray.api.openai_responses.request import ResponsesRequest
from goose_ray.api.sampling_fields import SamplingFields
from goose_ray.api.tokens import TokenizeRequest
from goose_ray.api.validation import only_neutral, parse_request
from goose_ray.errors import InvalidRequestError

HASH = "0" * 64
WIRE: dict[str, type[ChatCompletionRequest | TokenizeRequest]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/tokenize": TokenizeRequest,
}


@pytest.fixture(scope="module")
def document() -> Any:
    return request(ScriptedBackend(), "GET", "/openapi.json").json()


def test_every_route_stands_in_it_and_no_other(document: Any) -> None:
    app = build_http_app(ScriptedBackend(), MODEL, limits=LIMITS)
    served = {
        (route.path.replace(":path", ""), method)
        for route in app.routes
        if isinstance(route, APIRoute)
        for method in (route.methods or set()) - {"HEAD"}
    }
    described = {(path, method.upper()) for path, methods in document["paths"].items() for method in methods}
    assert served == described


def test_a_budget_is_a_number_or_auto(document: Any) -> None:
    number, auto, absent = document["components"]["schemas"]["GooseOptions"]["properties"]["budget"]["anyOf"]
    assert (number["type"], number["minimum"]) == ("integer", 1)
    assert (auto["const"], absent["type"]) == ("auto", "null")


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/v1/chat/completions", ChatCompletionRequest),
        ("/v1/completions", CompletionRequest),
        ("/v1/responses", ResponsesRequest),
    ],
)
def test_every_field_that_is_taken_is_named(document: Any, path: str, model: Any) -> None:
    body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    schema = document["components"]["schemas"][body["$ref"].rsplit("/", 1)[1]]
    assert schema["properties"].keys() == {field.alias or name for name, field in model.model_fields.items()}
    assert schema["additionalProperties"] is False
    assert schema["properties"]["model"]["enum"] == [MODEL]


def test_every_reference_leads_somewhere(document: Any) -> None:
    def references(part: Any) -> set[str]:
        if isinstance(part, dict):
            own = {part["$ref"]} if isinstance(part.get("$ref"), str) else set()
            return own.union(*map(references, part.values()))
        return set().union(*map(references, part)) if isinstance(part, list) else set()

    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) <= known


def test_keys_are_described_where_they_are_asked_for(document: Any) -> None:
    assert "401" not in document["paths"]["/v1/models"]["get"]["responses"]
    keyed = build_http_app(ScriptedBackend(), MODEL, limits=LIMITS, keys=KeyRing(None, HASH)).openapi()
    for path, methods in keyed["paths"].items():
        for operation in methods.values():
            assert ("401" in operation["responses"]) is (path != "/health")
            assert ("security" in operation) is (path != "/health")


def test_it_is_read_by_a_validator_of_schemas(document: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/responses", {"model": MODEL, "input": "Hi"})):
        for kind in (body, {**body, "stream": True}):
            operation = document["paths"][path]["post"]
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            jsonschema.validate(kind, {**schema, "components": document["components"]})
        answer = post(ScriptedBackend(), path, body).json()
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.validate(answer, {**schema, "components": document["components"]})


SAID: dict[str, Any] = {"role": "user", "content": "Hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
# fields that numbers are held to, by the engine and not by the wire models
BOUNDS: dict[str, tuple[list[Any], list[Any]]] = {
    "max_tokens": ([1, None], [-1]),
    "temperature": ([0, 2, None], [-0.1, 2.1]),
    "top_p": ([0.01, 1, None], [0, 1.1, -1]),
    "top_k": ([-1, 0, 40], [-2]),
    "min_p": ([0, 1], [-0.1, 1.1]),
    "presence_penalty": ([-2, 2], [-2.1, 2.1]),
    "frequency_penalty": ([-2, 2], [-2.1, 2.1]),
    "repetition_penalty": ([0.01, 100], [0, 0.009, 101]),
    "min_tokens": ([0, 1], [-1]),
    "best_of": ([1, None], [0]),
    "n": ([1, 128], [0, 129]),
    "logit_bias": ([{}, {"0": -100, "42": 100.0}], [{"x": 1}, {"042": 1}, {"-1": 1}, {"1": 101}, {"1": "2"}]),
    "stop": (["a", [], ["a"] * 16, None], ["", [""], ["a"] * 17, 1]),
    "stream_options": ([None], [{}]),
}
MESSAGES: tuple[list[Any], list[Any]] = (
    [
        [SAID],
        [{"role": "developer", "content": []}],
        [{"role": "assistant", "content": "Hi", "tool_calls": None}],
        [{"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "1", "tool_call_id": "c"}],
    ],
    [
        [],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{**SAID, "tool_calls": [CALL]}],
        [{**SAID, "tool_call_id": "c"}],
        [{"role": "assistant"}],
        [{"role": "assistant", "content": None, "tool_calls": []}],
        [{"role": "tool", "content": "1"}],
        [{"role": "tool", "tool_call_id": "c"}],
        [{"role": "critic", "content": "Hi"}],
    ],
)
TOKENIZED: tuple[list[Any], list[Any]] = (
    [{"prompt": ""}, {"prompt": "a", "messages": None}, {"messages": [SAID], "add_special_tokens": False}],
    [{}, {"prompt": None}, {"prompt": "a", "messages": [SAID]}, {"messages": [SAID], "add_special_tokens": True}],
)
CHATS, TOKENS = "/v1/chat/completions", "/tokenize"
TAKEN = [
    *((CHATS, {**CHAT, field: value}) for field, (taken, _) in BOUNDS.items() for value in taken),
    *((CHATS, {"model": MODEL, "messages": messages}) for messages in MESSAGES[0]),
    *((TOKENS, body) for body in TOKENIZED[0]),
]
REFUSED = [
    *((CHATS, {**CHAT, field: value}) for field, (_, refused) in BOUNDS.items() for value in refused),
    *((CHATS, {"model": MODEL, "messages": messages}) for messages in MESSAGES[1]),
    *((TOKENS, body) for body in TOKENIZED[1]),
]


@pytest.mark.parametrize(
    ("path", "body", "is_taken"), [(*one, True) for one in TAKEN] + [(*one, False) for one in REFUSED]
)
def test_what_it_allows_is_taken_and_what_it_forbids_refused(
    document: Any, path: str, body: dict[str, Any], is_taken: bool
) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    validator = jsonschema.Draft202012Validator({**schema, "components": document["components"]})
    assert validator.is_valid(body) is is_taken
    try:
        wire = parse_request(WIRE[path], "application/json", json.dumps(body).encode())
        wire.to_call("r") if isinstance(wire, ChatCompletionRequest) else wire.to_call()
    except InvalidRequestError:
        assert not is_taken
    else:
        assert is_taken


def test_every_request_field_stands_in_the_documentation_as_in_the_code() -> None:
    text = (Path(__file__).parents[3] / "docs" / "serving.md").read_text(encoding="utf-8")
    table = text.split("## Every request field")[1]
    rows = [line.split("|")[1:4] for line in table.splitlines() if line.startswith("| `")]
    documented = {name.strip(" `"): (chat.strip(), completions.strip()) for name, chat, completions in rows}
    models = (ChatCompletionRequest, CompletionRequest)
    names = sorted({name for model in models for name in model.model_fields})
    assert documented == {name: (kind_of(name, models[0]), kind_of(name, models[1])) for name in names}


def kind_of(name: str, model: type[SamplingFields]) -> str:
    field = model.model_fields.get(name)
    if field is None:
        return "–"
    for marker in field.metadata:
        if isinstance(marker, only_neutral):
            allowed = " or ".join(f"`{json.dumps(value)}`" for value in marker.neutral)
            return f"refused, but {allowed}" if allowed else "refused"
    return "accepted" if name in KnownFields.model_fields or name == "prediction" else "served"
