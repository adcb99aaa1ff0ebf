"""The Serve deployment in front: the HTTP app, on as many replicas as there are clients for, each without state."""

from typing import Any

import ray
from fastapi import FastAPI
from ray.exceptions import TaskCancelledError
from ray.serve.handle import DeploymentHandle

from goose_ray.api.http_app import HttpLimits, build_http_app, client_gone
from goose_ray.api.serve_backend import ServeBackend
from goose_ray.api.serve_logging import log_through_serve
from goose_ray.config import GooseConfig

__all__ = ["OpenAIIngress"]


class OpenAIIngress:
    """Wrapped by `serve.ingress()`, which asks for the app when the replica starts."""

    def __init__(self, server: DeploymentHandle[Any], config: GooseConfig) -> None:
        log_through_serve()
        backend = ServeBackend(server, caller=ray.get_runtime_context().get_actor_name())
        limits = HttpLimits(
            max_body_bytes=config.max_body_bytes,
            max_calls_at_once=config.engine.max_running_requests,
            kv_cache_tokens=config.engine.kv_cache_tokens,
        )
        self._app = build_http_app(backend, config.model_name, limits=limits)
        # What reading a body raises if Serve has ended the request, because the client left, before saying so in ASGI.
        self._app.add_exception_handler(TaskCancelledError, client_gone)

    def __serve_build_asgi_app__(self) -> FastAPI:
        return self._app
