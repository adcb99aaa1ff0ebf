"""Options of a Serve config: those that Serve does not know and passes over without a word, misspelt ones above all,
and values that it would refuse when it starts.

Knows the keys of a config, its application and its deployments; what their values may be, Serve's own schema says. What
a config names by where it can be imported from is left to Serve, which may look for it elsewhere.
"""

from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError

from goose_ray.config_problem import first_problem, shown, without_texts
from goose_ray.errors import ConfigError
from goose_ray.scaling.policy import targets_of

__all__ = ["check_options", "check_values"]

_POLICY = "goose_ray.scaling.policy:CapacityPolicy"
_SECRETS = ("http_options.ssl_keyfile_password",)


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
    for where, one in _applications(document, application):
        _check(where, one, ServeApplicationSchema.model_fields)
    for where, deployment in _deployments(document, application):
        _check(where, deployment, DeploymentSchema.model_fields)
        autoscaling = deployment.get("autoscaling_config")
        policy = autoscaling.get("policy") if isinstance(autoscaling, Mapping) else None
        for name, part, schema in (
            ("autoscaling_config", autoscaling, AutoscalingConfig),
            ("autoscaling_config.policy", policy, AutoscalingPolicy),
            ("ray_actor_options", deployment.get("ray_actor_options"), RayActorOptionsSchema),
            ("request_router_config", deployment.get("request_router_config"), RequestRouterConfig),
        ):
            _check(f"{where}.{name}", part, schema.model_fields)


def check_values(document: Mapping[str, Any], application: Mapping[str, Any]) -> None:
    """Raises ConfigError naming an option of `document` whose value Serve refuses, or our autoscaling policy, which
    Serve's controller could only tell its log. Without Ray all pass but those of the policy.
    """
    for where, deployment in _deployments(document, application):
        autoscaling = deployment.get("autoscaling_config")
        if isinstance(autoscaling, Mapping) and isinstance(policy := autoscaling.get("policy"), Mapping):
            _check_policy(f"{where}.autoscaling_config.policy", policy)
    try:
        from ray.serve.config import AutoscalingConfig, RequestRouterConfig
        from ray.serve.schema import DeploymentSchema, ServeDeploySchema
        from ray.util.placement_group import VALID_PLACEMENT_GROUP_STRATEGIES
    except ImportError:
        return
    prefix = application.get("route_prefix")
    if isinstance(prefix, str) and not prefix.startswith("/"):
        # Serve finds out when the application is built
        raise ConfigError(f"applications.route_prefix: must begin with /, not {prefix!r}")
    _check_distinct("name", "default", document, application)
    _check_distinct("route_prefix", "/", document, application)
    for where, deployment in _deployments(document, application):
        if (autoscaling := deployment.get("autoscaling_config")) is not None:
            # the schema of a deployment takes any mapping for it
            _parse(f"{where}.autoscaling_config", autoscaling, AutoscalingConfig)
        if (router := deployment.get("request_router_config")) is not None:
            _parse(f"{where}.request_router_config", router, RequestRouterConfig)
        # the schema of the whole names a deployment by its number
        _parse(where, deployment, DeploymentSchema)
        strategy = deployment.get("placement_group_strategy")
        if isinstance(strategy, str) and strategy not in VALID_PLACEMENT_GROUP_STRATEGIES:
            # Ray finds out when a replica starts
            known = ", ".join(sorted(VALID_PLACEMENT_GROUP_STRATEGIES))
            raise ConfigError(f"{where}.placement_group_strategy: must be one of {known}, not {strategy!r}")
    _parse("", document, ServeDeploySchema)


def _applications(document: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each with its path; that of `ours` has no number. What is no mapping Serve's schema refuses."""
    for number, one in enumerate(document["applications"]):
        if isinstance(one, Mapping):
            yield "applications" if one is ours else f"applications.{number}", one


def _deployments(document: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Of every application, each with its path; those of `ours` go by name. Raises ConfigError where there are none."""
    for where, application in _applications(document, ours):
        deployments = application.get("deployments")
        if not isinstance(deployments, list | None):
            raise ConfigError(f"{where}.deployments: must be a list, not {shown(deployments)}")
        for number, one in enumerate(deployments or []):
            path = f"deployments.{one['name']}" if application is ours else f"{where}.deployments.{number}"
            if not isinstance(one, Mapping):
                raise ConfigError(f"{path}: must be a mapping, not {shown(one)}")
            yield path, one


def _check_distinct(option: str, default: str, document: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    known = set()
    for where, one in _applications(document, ours):
        # None is a route that Serve does not open
        if isinstance(value := one.get(option, default), str):
            if value in known:
                raise ConfigError(f"{where}.{option}: must be another than an earlier application's, not {value!r}")
            known.add(value)


def _check_policy(where: str, policy: Mapping[str, Any]) -> None:
    function = str(policy.get("policy_function", ""))
    if function.startswith("goose_ray.") and function != _POLICY:
        raise ConfigError(f"{where}.policy_function: ours is {_POLICY}, not {function!r}")
    if function == _POLICY:
        named = policy.get("policy_kwargs") or {}
        if not isinstance(named, Mapping):
            raise ConfigError(f"{where}.policy_kwargs: must be a mapping, not {shown(named)}")
        try:
            targets_of(named)
        except ValueError as error:
            raise ConfigError(f"{where}.policy_kwargs: {error}") from None


def _parse(where: str, options: object, schema: type[BaseModel]) -> None:
    try:
        schema.model_validate(_without_imports(options))
    except ValidationError as error:
        raise ConfigError(first_problem(error, schema, where=where, secrets=_SECRETS)) from None
    except (TypeError, AttributeError) as error:
        # validators of Serve's own that expect the right type
        problem = without_texts(str(error).strip(), options)
        raise ConfigError(": ".join(filter(None, [where, problem]))) from None


def _without_imports(options: object) -> Any:
    """A copy, which a schema may write into, without what it would import: texts alone can be that."""
    if isinstance(options, Mapping):
        return {
            name: _without_imports(value)
            for name, value in options.items()
            if not (name in ("policy_function", "request_router_class") and isinstance(value, str | bytes))
        }
    return [_without_imports(one) for one in options] if isinstance(options, list) else deepcopy(options)


def _check(where: str, options: object, known: Collection[str]) -> None:
    for name in options if isinstance(options, Mapping) else ():
        if name not in known:
            near = get_close_matches(str(name), known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{where}.{name}".lstrip(".") + f": there is no such option{hint}")
