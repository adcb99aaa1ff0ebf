"""Options of a Serve config: those that Serve does not know and passes over without a word, misspelt ones above all,
and values that it would refuse when it starts.

Knows the keys of a config, its application and its deployments; what their values may be, Serve's own schema says. What
a config names by where it can be imported from is left to Serve, which may look for it elsewhere.
"""

from collections.abc import Collection, Mapping
from copy import deepcopy
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError

from goose_ray.config_problem import first_problem
from goose_ray.errors import ConfigError
from goose_ray.scaling.policy import targets_of

__all__ = ["check_options", "check_values"]

_POLICY = "goose_ray.scaling.policy:CapacityPolicy"


def check_options(document: Mapping[str, Any], application: Mapping[str, Any]) -> None:
    """Raises ConfigError naming an option that there is not. Without Ray, which `goose doctor` must bear, all pass."""
    try:
        from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
        from ray.serve.schema import (
            DeploymentSchema,
            HTTPOptionsSchema,
            RayActorOptionsSchema,
            ServeApplicationSchema,
            ServeDeploySchema,
            gRPCOptionsSchema,
        )
    except ImportError:
        return
    _check("", document, ServeDeploySchema.model_fields)
    _check("http_options", document.get("http_options"), HTTPOptionsSchema.model_fields)
    _check("grpc_options", document.get("grpc_options"), gRPCOptionsSchema.model_fields)
    _check("applications", application, ServeApplicationSchema.model_fields)
    for deployment in application.get("deployments") or []:
        where = f"deployments.{deployment['name']}"
        _check(where, deployment, DeploymentSchema.model_fields)
        autoscaling = deployment.get("autoscaling_config") or {}
        for name, part, schema in (
            ("autoscaling_config", autoscaling, AutoscalingConfig),
            ("autoscaling_config.policy", autoscaling.get("policy"), AutoscalingPolicy),
            ("ray_actor_options", deployment.get("ray_actor_options"), RayActorOptionsSchema),
            ("request_router_config", deployment.get("request_router_config"), RequestRouterConfig),
        ):
            _check(f"{where}.{name}", part, schema.model_fields)


def check_values(document: Mapping[str, Any], application: Mapping[str, Any]) -> None:
    """Raises ConfigError naming an option of `document` whose value Serve refuses, or our autoscaling policy, which
    Serve's controller could only tell its log. Without Ray all pass but those of the policy.
    """
    for deployment in application.get("deployments") or []:
        policy = (deployment.get("autoscaling_config") or {}).get("policy")
        if isinstance(policy, Mapping):
            _check_policy(f"deployments.{deployment['name']}.autoscaling_config.policy", policy)
    try:
        from ray.serve.config import AutoscalingConfig, RequestRouterConfig
        from ray.serve.schema import DeploymentSchema, ServeDeploySchema
    except ImportError:
        return
    prefix = application.get("route_prefix")
    if isinstance(prefix, str) and not prefix.startswith("/"):
        # Serve finds out when the application is built
        raise ConfigError(f"applications.route_prefix: must begin with /, not {prefix!r}")
    for deployment in application.get("deployments") or []:
        where = f"deployments.{deployment['name']}"
        if (autoscaling := deployment.get("autoscaling_config")) is not None:
            # the schema of a deployment takes any mapping for it
            _parse(f"{where}.autoscaling_config", autoscaling, AutoscalingConfig)
        if (router := deployment.get("request_router_config")) is not None:
            _parse(f"{where}.request_router_config", router, RequestRouterConfig)
        # the schema of the whole names a deployment by its number
        _parse(where, deployment, DeploymentSchema)
    _parse("", document, ServeDeploySchema)


def _check_policy(where: str, policy: Mapping[str, Any]) -> None:
    function = str(policy.get("policy_function", ""))
    if function.startswith("goose_ray.") and function != _POLICY:
        raise ConfigError(f"{where}.policy_function: ours is {_POLICY}, not {function!r}")
    if function == _POLICY:
        try:
            targets_of(policy.get("policy_kwargs") or {})
        except ValueError as error:
            raise ConfigError(f"{where}.policy_kwargs: {error}") from None


def _parse(where: str, options: object, schema: type[BaseModel]) -> None:
    try:
        schema.model_validate(_without_imports(options))
    except ValidationError as error:
        raise ConfigError(first_problem(error, schema, where=where)) from None
    except (TypeError, AttributeError) as error:
        # validators of Serve's own that expect the right type
        raise ConfigError(": ".join(filter(None, [where, str(error).strip()]))) from None


def _without_imports(options: object) -> Any:
    """A copy, which a schema may write into, without what it would import: strings alone can be that."""
    if isinstance(options, Mapping):
        return {
            name: _without_imports(value)
            for name, value in options.items()
            if not (name in ("policy_function", "request_router_class") and isinstance(value, str))
        }
    return [_without_imports(one) for one in options] if isinstance(options, list) else deepcopy(options)


def _check(where: str, options: object, known: Collection[str]) -> None:
    for name in options if isinstance(options, Mapping) else ():
        if name not in known:
            near = get_close_matches(str(name), known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{where}.{name}".lstrip(".") + f": there is no such option{hint}")
