"""The Serve deployment in front: the HTTP app, on as many replicas as there are clients for, each without state."""

import logging
from typing import Any

import ray
from fastapi import FastAPI
from ray.exceptions import TaskCancelledError
from ray.serve.handle import DeploymentHandle

from goose_ray.api.auth.key_ring import KeyRing
from goose_ray.api.disconnects import Disconnects
from goose_ray.api.http_app import HttpLimits, build_http_app
from goose_ray.api.serve_backend import ServeBackend
from goose_ray.api.serve_logging import log_through_serve
from goose_ray.config import GooseConfig
from goose_ray.telemetry.tracing import Tracing

__all__ = ["INGRESS_OPTIONS", "OpenAIIngress"]

logger = logging.getLogger(__name__)

# An ingress replica holds a request for as long as it streams and does next to nothing for it. What may run and what
# may wait is the business of GooseServer's limits; this one only bounds the ingress' memory.
INGRESS_OPTIONS: dict[str, Any] = {
    "max_ongoing_requests": 2048,
    "max_queued_requests": 1024,
    "backpressure_config": {"status_code": 429, "retry_after_s": 2.0},
    # Sooner than replicas: one that hangs holds up every replica with a stream for it that ends (Ray waits there for
    # the receiver), and must be gone before they are given up as well.
    "health_check_period_s": 2.0,
    "health_check_timeout_s": 5.0,
    # One that is replaced hears its answers out, however often they change replicas, and its successor is there first.
    "graceful_shutdown_timeout_s": 3600.0,
    "max_surge_percent": 100,
}


class OpenAIIngress:
    """Wrapped by `serve.ingress()`, which asks for the app when the replica starts."""

    def __init__(self, server: DeploymentHandle[Any], config: GooseConfig) -> None:
        log_through_serve()
        name = ray.get_runtime_context().get_actor_name()
        tracing = Tracing.to(config.tracing_endpoint, instance=name, sample=config.tracing_sample)
        backend = ServeBackend(server, caller=name, tracing=tracing)
        limits = HttpLimits(
            max_body_bytes=config.max_body_bytes,
            body_timeout_s=config.body_timeout_s,
            max_calls_at_once=config.engine.max_running_requests,
            kv_cache_tokens=config.engine.kv_cache_tokens,
            max_budget=config.engine.max_batch_rows,
        )
        self._app = build_http_app(backend, config.model_name, limits=limits, keys=_keys(config), tracing=tracing)
        self._app.add_middleware(Disconnects, error=TaskCancelledError)

    def __serve_build_asgi_app__(self) -> FastAPI:
        return self._app


def _keys(config: GooseConfig) -> KeyRing | None:
    """Raises ConfigError if the file of keys is none."""
    if config.api_keys_file is None and config.api_key_sha256 is None:
        logger.warning("no API keys are configured: whoever reaches the port is served")
        return None
    return KeyRing(config.api_keys_file, config.api_key_sha256)
