"""The OpenAPI document of the HTTP surface: the wire models themselves, and every status that a route can have.

Made by hand where FastAPI would guess: our routes read their own bodies, and answer validation errors with 400.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from goose_ray.api.chat import ChatCompletionRequest
from goose_ray.api.completions import CompletionRequest
from goose_ray.api.openai_responses.reply import ResponseObject
from goose_ray.api.openai_responses.request import ResponsesRequest
from goose_ray.api.reply import Reply
from goose_ray.api.responses import ChatCompletion, Completion, ModelList, ModelObject
from goose_ray.api.tokens import DetokenizeReply, DetokenizeRequest, TokenizeReply, TokenizeRequest

__all__ = ["openapi_document"]

_REASONS = {
    200: "Done",
    400: "A field is wrong, unknown or not supported; `param` names it",
    401: "No API key, or none of this server's",
    404: "Another model than the one that is served",
    408: "The body has not come within `body_timeout_s`",
    413: "The body is larger than `max_body_bytes`",
    415: "The body is not plain `application/json`",
    429: "The queue is full, or the API key has had what it may have; see `Retry-After`",
    500: "A fault of the server; its log says which",
    503: "No replica can answer; see `Retry-After`",
}
# One of a stream: of completions JSON text or [DONE], of responses JSON text with the type that `event` names too.
_EVENT = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
_OF_BODIES = (400, 404, 408, 413, 415, 429, 500, 503)
_OF_VIEWS = (500, 503)


class ErrorDetails(Reply):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Reply):
    error: ErrorDetails


class VersionReply(Reply):
    version: str


class IndexReply(Reply):
    name: str
    version: str
    model: str
    routes: dict[str, str]


class HealthReplicas(Reply):
    live: int
    healthy: int


class HealthReply(Reply):
    status: Literal["ok", "unhealthy"]
    replicas: HealthReplicas


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operation:
    summary: str
    body: type[BaseModel] | None = None
    # None: an object that is not described further, or a text of `media_type`
    reply: type[BaseModel] | None = None
    media_type: str = "application/json"
    streams: bool = False
    statuses: Sequence[int] = _OF_VIEWS
    parameters: Sequence[Mapping[str, Any]] = field(default_factory=tuple)


def _query(name: str, schema: Mapping[str, Any], description: str) -> Mapping[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": dict(schema), "description": description}


_POSTS = {
    "/v1/chat/completions": _Operation(
        summary="Answer a conversation",
        body=ChatCompletionRequest,
        reply=ChatCompletion,
        streams=True,
        statuses=_OF_BODIES,
    ),
    "/v1/completions": _Operation(
        summary="Go on with a text", body=CompletionRequest, reply=Completion, streams=True, statuses=_OF_BODIES
    ),
    "/v1/responses": _Operation(
        summary="Answer with items", body=ResponsesRequest, reply=ResponseObject, streams=True, statuses=_OF_BODIES
    ),
    "/tokenize": _Operation(
        summary="The tokens of a text or conversation", body=TokenizeRequest, reply=TokenizeReply, statuses=_OF_BODIES
    ),
    "/detokenize": _Operation(
        summary="The text of tokens", body=DetokenizeRequest, reply=DetokenizeReply, statuses=_OF_BODIES
    ),
}
_NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}, "description": "Of the model"}
_LAST = _query("last", {"type": "integer", "minimum": 1, "default": 64}, "How many of each replica")
_SINCE = _query("since", {"type": "number", "default": 0}, "Unix time of the first point")
_GETS = {
    "/": _Operation(summary="What this is, and where the rest is", reply=IndexReply, statuses=(500,)),
    "/v1/models": _Operation(summary="The model served", reply=ModelList),
    "/v1/models/{name}": _Operation(
        summary="One model", reply=ModelObject, statuses=(404, *_OF_VIEWS), parameters=[_NAME]
    ),
    "/version": _Operation(summary="The version of the server", reply=VersionReply),
    "/health": _Operation(summary="200 while a replica is healthy, else 503", reply=HealthReply),
    "/metrics": _Operation(summary="Prometheus' text of the whole cluster", media_type="text/plain"),
    "/dashboard": _Operation(summary="A live page of the cluster", media_type="text/html"),
    "/v1/goose/acceptance": _Operation(summary="What was drafted and accepted, by source"),
    "/v1/goose/steps": _Operation(summary="The last steps", statuses=(400, *_OF_VIEWS), parameters=[_LAST]),
    "/v1/goose/live": _Operation(summary="What the dashboard draws", statuses=(400, *_OF_VIEWS), parameters=[_SINCE]),
}


def openapi_document(model: str, *, has_keys: bool) -> dict[str, Any]:
    """`model` is the one name that requests may ask for."""
    paths: dict[str, dict[str, Any]] = {}
    for method, operations in (("post", _POSTS), ("get", _GETS)):
        for path, operation in operations.items():
            paths.setdefault(path, {})[method] = _described(method, path, operation, has_keys and path != "/health")
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "goose-ray",
            "version": version("goose-ray"),
            "description": "OpenAI's API, and more, over a cluster that speculates. See docs/serving.md.",
        },
        "paths": paths,
        "components": {"schemas": _schemas(model)},
    }
    if has_keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return document


def _described(method: str, path: str, operation: _Operation, needs_key: bool) -> dict[str, Any]:
    answered = _content(operation)
    responses: dict[str, Any] = {"200": {"description": _REASONS[200], "content": answered}}
    for status in sorted({*operation.statuses, *((401,) if needs_key else ())}):
        reply = HealthReply if path == "/health" and status == 503 else ErrorBody
        responses[str(status)] = {
            "description": _REASONS[status],
            "content": {"application/json": {"schema": _reference(reply)}},
        }
    described: dict[str, Any] = {
        "operationId": method + path.replace("/", "_").replace("{", "").replace("}", ""),
        "summary": operation.summary,
        "responses": responses,
    }
    if operation.parameters:
        described["parameters"] = list(operation.parameters)
    if operation.body is not None:
        schema = _reference(operation.body)
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if needs_key:
        described["security"] = [{"key": []}]
    return described


def _content(operation: _Operation) -> dict[str, Any]:
    if operation.media_type != "application/json":
        return {operation.media_type: {"schema": {"type": "string"}}}
    schema = {"type": "object"} if operation.reply is None else _reference(operation.reply)
    content: dict[str, Any] = {"application/json": {"schema": schema}}
    if operation.streams:
        content["text/event-stream"] = {"schema": _EVENT}
    return content


def _reference(model: type[BaseModel]) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _schemas(model: str) -> dict[str, Any]:
    operations = [*_POSTS.values(), *_GETS.values()]
    bodies: list[type[BaseModel]] = [operation.body for operation in operations if operation.body is not None]
    replies: list[type[BaseModel]] = [ErrorBody]
    replies += [operation.reply for operation in operations if operation.reply is not None]
    wanted: list[tuple[type[BaseModel], JsonSchemaMode]] = [(body, "validation") for body in bodies]
    wanted += [(reply, "serialization") for reply in replies]
    _, definitions = models_json_schema(wanted, ref_template="#/components/schemas/{model}")
    schemas: dict[str, Any] = definitions["$defs"]
    for body in bodies:
        asked = schemas[body.__name__]["properties"]["model"]
        asked["enum"] = [model] if asked.get("type") == "string" else [model, None]
    return schemas
