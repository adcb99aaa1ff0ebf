"""From configuration to a Serve application: `goose_ray.app:build_app`.

YAML (`serve run deployments/goose.yaml`):

    http_options: {host: 127.0.0.1, port: 8000}
    applications:
      - name: goose
        route_prefix: /
        import_path: goose_ray.app:build_app
        args: {model: smollm2-135m-instruct}
        deployments: [{name: GooseServer, autoscaling_config: {min_replicas: 1, max_replicas: 2}}]

Python:

    serve.run(build_app({"model": "smollm2-135m-instruct"}), name="goose")
"""

from typing import Any

import ray
from ray import serve
from ray.serve import Application
from ray.serve.config import DeploymentActorConfig, RequestRouterConfig

from goose_ray.api.ingress import INGRESS_OPTIONS, OpenAIIngress
from goose_ray.assembly import check_model_fits
from goose_ray.config import GRACEFUL_SHUTDOWN_S, MAX_ONGOING_REQUESTS, GooseConfig
from goose_ray.placement import gang_device, gang_placement
from goose_ray.replica import GooseServer
from goose_ray.routing.prompt_key import blocks_of
from goose_ray.telemetry.acceptance_aggregator import AGGREGATOR_NAME, AcceptanceAggregator

__all__ = ["build_app"]

# Without a YAML that says otherwise: as many as the engine runs at once, and a queue that is worth waiting in.
_SERVER_LIMITS: dict[str, Any] = {
    "max_ongoing_requests": MAX_ONGOING_REQUESTS,
    "max_queued_requests": 64,
    "backpressure_config": {"status_code": 429, "retry_after_s": 2.0},
    "health_check_period_s": 5.0,
    "health_check_timeout_s": 10.0,
    "graceful_shutdown_timeout_s": GRACEFUL_SHUTDOWN_S,
    # the ingress logs every request; a line more for each call behind it says nothing new
    "logging_config": {"enable_access_log": False},
}
# Serve imports it by this name.
_PREFIX_ROUTER = "goose_ray.routing.request_router.PrefixRequestRouter"


def build_app(args: dict[str, Any]) -> Application:
    """`args` are the fields of `goose_ray.config.GooseConfig`. Raises ConfigError naming the field that is wrong,
    where that can be known before a replica loads the model.
    """
    config = GooseConfig.from_args(args)
    check_model_fits(config)
    placement: dict[str, Any] = {}
    if config.tensor_parallel_size > 1:
        config = config.model_copy(update={"device": gang_device(config)})
        placement = gang_placement(config)
    aggregator = DeploymentActorConfig(
        name=AGGREGATOR_NAME,
        actor_class=ray.remote(AcceptanceAggregator),
        init_kwargs={
            "live_for_s": config.replica_silent_after_s,
            "half_life_s": config.tuning_half_life_s,
            "tunes": config.tuning,
            "snapshot": config.aggregator_snapshot,
        },
        actor_options={"num_cpus": 0},
    )
    server = serve.deployment(GooseServer).options(
        deployment_actors=[aggregator], **_SERVER_LIMITS, **_router(config), **placement
    )
    ingress = serve.deployment(serve.ingress()(OpenAIIngress)).options(
        ray_actor_options={"num_cpus": 0}, **INGRESS_OPTIONS
    )
    return ingress.bind(server.bind(config), config)


def _router(config: GooseConfig) -> dict[str, Any]:
    """Options of the deployment: Serve's default is the power of two choices."""
    if config.router == "power_of_two":
        return {}
    # as much as a replica's prefix cache holds
    remembered = {"blocks_per_replica": blocks_of(config.engine.kv_cache_tokens)}
    return {
        "request_router_config": RequestRouterConfig(
            request_router_class=_PREFIX_ROUTER, request_router_kwargs=remembered
        )
    }
