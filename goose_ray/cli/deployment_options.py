"""Options of a Serve config that Serve does not know and passes over without a word, misspelt ones above all.

Knows the keys of a config, its application and its deployments. Values are Serve's to check, and it does.
"""

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

from goose_ray.errors import ConfigError

__all__ = ["check_options"]


def check_options(document: Mapping[str, Any], application: Mapping[str, Any]) -> None:
    """Raises ConfigError naming an option that there is not. Without Ray, which `goose doctor` must bear, all pass."""
    try:
        from ray.serve.config import AutoscalingConfig
        from ray.serve.schema import (
            DeploymentSchema,
            HTTPOptionsSchema,
            RayActorOptionsSchema,
            ServeApplicationSchema,
            ServeDeploySchema,
        )
    except ImportError:
        return
    _check("", document, ServeDeploySchema.model_fields)
    _check("http_options", document.get("http_options"), HTTPOptionsSchema.model_fields)
    _check("applications", application, ServeApplicationSchema.model_fields)
    for deployment in application.get("deployments") or []:
        where = f"deployments.{deployment['name']}"
        _check(where, deployment, DeploymentSchema.model_fields)
        _check(f"{where}.autoscaling_config", deployment.get("autoscaling_config"), AutoscalingConfig.model_fields)
        _check(f"{where}.ray_actor_options", deployment.get("ray_actor_options"), RayActorOptionsSchema.model_fields)


def _check(where: str, options: object, known: Collection[str]) -> None:
    for name in options if isinstance(options, Mapping) else ():
        if name not in known:
            near = get_close_matches(str(name), known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{where}.{name}".lstrip(".") + f": there is no such option{hint}")
