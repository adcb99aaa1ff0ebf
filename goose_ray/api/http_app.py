"""The HTTP surface: which path is answered by what. Stateless; knows the system behind it as a `Backend`."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI

from goose_ray.api.answering import Answering, HttpLimits
from goose_ray.api.auth.gate import Gate
from goose_ray.api.auth.key_ring import KeyRing
from goose_ray.api.backend import Backend
from goose_ray.api.cluster_routes import ClusterRoutes
from goose_ray.api.error_handlers import add_error_handlers
from goose_ray.api.generation_routes import GenerationRoutes
from goose_ray.api.model_routes import ModelRoutes
from goose_ray.api.openai_responses.routes import ResponsesRoutes
from goose_ray.api.openapi import openapi_document
from goose_ray.api.request_reader import RequestReader
from goose_ray.api.request_spans import RequestSpans
from goose_ray.telemetry.tracing import Tracing

__all__ = ["HttpLimits", "build_http_app"]

_Endpoint = Callable[..., Any]


class _App(FastAPI):
    """With a document of its own, and without FastAPI's pages, whose scripts come from elsewhere and would run with the
    reader's key.
    """

    def __init__(self, model: str, *, has_keys: bool) -> None:
        # A path with a slash at its end is another, which there is not: clients do not send a body twice, as a redirect
        # would have them.
        super().__init__(docs_url=None, redoc_url=None, redirect_slashes=False)
        self._model = model
        self._has_keys = has_keys
        self._document: dict[str, Any] | None = None

    def openapi(self) -> dict[str, Any]:
        """Made when it is first asked for."""
        if self._document is None:
            self._document = openapi_document(self._model, has_keys=self._has_keys)
        return self._document


def build_http_app(
    backend: Backend, model: str, *, limits: HttpLimits, keys: KeyRing | None = None, tracing: Tracing | None = None
) -> FastAPI:
    """`model` is the one name that requests may ask for. Without `keys` whoever comes is served."""
    app = _App(model, has_keys=keys is not None)
    reader = RequestReader(model, max_body_bytes=limits.max_body_bytes, body_timeout_s=limits.body_timeout_s)
    answering = Answering(backend, limits)
    generation = GenerationRoutes(answering, reader)
    of_model = ModelRoutes(backend, reader)
    of_cluster = ClusterRoutes(backend, model)
    posts: dict[str, _Endpoint] = {
        "/v1/chat/completions": generation.chat_completions,
        "/v1/completions": generation.completions,
        "/v1/responses": ResponsesRoutes(answering, reader).create,
        "/tokenize": of_model.tokenize,
        "/detokenize": of_model.detokenize,
    }
    gets: dict[str, _Endpoint] = {
        "/": of_model.index,
        "/v1/models": of_model.models,
        "/v1/models/{name:path}": of_model.model,
        "/version": of_model.version,
        "/v1/goose/acceptance": of_cluster.acceptance,
        "/v1/goose/steps": of_cluster.steps,
        "/v1/goose/live": of_cluster.live,
        "/dashboard": of_cluster.dashboard,
        "/health": of_cluster.health,
        "/metrics": of_cluster.metrics,
    }
    for path, endpoint in posts.items():
        app.add_api_route(path, endpoint, methods=["POST"])
    for path, endpoint in gets.items():
        app.add_api_route(path, endpoint, methods=["GET"])
        # a route of its own, as an operation of OpenAPI has one method
        app.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)
    add_error_handlers(app)
    if tracing is not None and tracing.is_on:
        app.add_middleware(RequestSpans, tracing=tracing, model=model)
    # around it: who has no key fills no trace
    if keys is not None:
        app.add_middleware(Gate, keys=keys)
    return app
