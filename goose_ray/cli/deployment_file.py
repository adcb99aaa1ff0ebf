"""A Serve config as `goose serve` runs it: a file of the user's or one that comes along, with what the command line
says put into it.

Knows the layout of the YAML (one application of `goose_ray.app:build_app`, its deployment GooseServer) and the names of
fields that options stand for; runs nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import yaml

from goose_ray.cli.deployment_options import check_options, check_values
from goose_ray.cli.deployment_reading import find_deployment, read_deployment
from goose_ray.config import GRACEFUL_SHUTDOWN_S, MAX_ONGOING_REQUESTS, GooseConfig
from goose_ray.config_problem import shown
from goose_ray.errors import ConfigError

__all__ = ["Changes", "DeploymentFile"]

_BUILDER = "goose_ray.app:build_app"
_DEFAULT = "goose"
_DEPLOYMENTS = ("GooseServer", "OpenAIIngress")


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What takes the place of what the file says; None leaves it."""

    host: str | None = None
    port: int | None = None
    # least and most
    replicas: tuple[int, int] | None = None
    # fields of GooseConfig by name, those of its engine
    args: Mapping[str, Any] | None = None
    engine: Mapping[str, Any] | None = None


class DeploymentFile:
    """Raises ConfigError if there is no such file, or if it is no Serve config with one application of goose's."""

    def __init__(self, name: str | None = None) -> None:
        self.path = find_deployment(_DEFAULT if name is None else name)
        try:
            document: Any = read_deployment(self.path)
        except ValueError as error:
            raise self._wrong(str(error)) from None
        applications = document.get("applications") if isinstance(document, dict) else None
        if not isinstance(applications, list):
            raise self._wrong("it has no list of `applications`")
        ours = [one for one in applications if isinstance(one, dict) and one.get("import_path") == _BUILDER]
        if len(ours) != 1:
            raise self._wrong(f"its `applications` have {len(ours)} of them")
        self._document: dict[str, Any] = document
        self._application: dict[str, Any] = ours[0]
        _require_mapping(document, "http_options")
        _require_mapping(ours[0], "args")
        _require_mapping(ours[0].get("args") or {}, "engine")
        # Serve's own, for a file that says nothing, is every address
        self._part(document, "http_options").setdefault("host", "127.0.0.1")
        self._check_deployments()

    def _check_deployments(self) -> None:
        deployments = self._application.get("deployments")
        if deployments is None:
            self._application.pop("deployments", None)
            deployments = []
        if not isinstance(deployments, list):
            raise ConfigError(f"deployments: must be a list, not {shown(deployments)}")
        for one in deployments:
            name = one.get("name") if isinstance(one, dict) else one
            if not isinstance(one, dict) or name not in _DEPLOYMENTS:
                near = get_close_matches(str(name), _DEPLOYMENTS, 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ConfigError(
                    f"deployments: each must have as name {' or '.join(_DEPLOYMENTS)}, not {shown(name)}{hint}"
                )
            _require_mapping(one, "autoscaling_config")
        for name in _DEPLOYMENTS:
            if (count := sum(one["name"] == name for one in deployments)) > 1:
                raise ConfigError(f"deployments: must have {name} once, not {count} times")
        check_options(self._document, self._application)

    def _wrong(self, problem: str) -> ConfigError:
        return ConfigError(f"{self.path} is no Serve config with one application of {_BUILDER}: {problem}")

    def change(self, changes: Changes) -> None:
        """A model of another name takes the file's `served_model_name` away, unless that is changed too: it would
        announce a model that is not served.
        """
        http: dict[str, Any] = self._document["http_options"]
        http.update({name: value for name in ("host", "port") if (value := getattr(changes, name)) is not None})
        args = self._part(self._application, "args")
        if changes.args:
            if changes.args.get("model", args.get("model")) != args.get("model"):
                args.pop("served_model_name", None)
            args.update(changes.args)
        if changes.engine:
            self._part(args, "engine").update(changes.engine)
            if running := changes.engine.get("max_running_requests"):
                self._let_through(running)
        if changes.replicas is not None:
            self._scale(*changes.replicas)

    @property
    def config(self) -> GooseConfig:
        """Raises ConfigError naming the field that is wrong, Serve's own too."""
        port = self._port
        if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 65536:
            raise ConfigError(f"http_options.port: must be a number from 1 to 65535, not {shown(port)}")
        check_values(self._document, self._application)
        return GooseConfig.from_args(self._application.get("args") or {})

    @property
    def host(self) -> str:
        return str(self._document["http_options"]["host"])

    @property
    def port(self) -> int:
        return int(self._port)

    @property
    def _port(self) -> Any:
        """As it stands there."""
        return self._document["http_options"].get("port", 8000)

    @property
    def application(self) -> str:
        return str(self._application.get("name", "default"))

    @property
    def graceful_shutdown_s(self) -> float:
        """What answers under way have when their replica is to go."""
        servers = [one for one in self._application.get("deployments", []) if one["name"] == "GooseServer"]
        given = [one["graceful_shutdown_timeout_s"] for one in servers if "graceful_shutdown_timeout_s" in one]
        return float(given[0]) if given else GRACEFUL_SHUTDOWN_S

    @property
    def url(self) -> str:
        """For a client on this machine."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}{str(self._application.get('route_prefix') or '/').rstrip('/')}"

    def dump(self) -> str:
        """YAML that `serve run` and `serve deploy` take."""
        return yaml.safe_dump(self._document, sort_keys=False, allow_unicode=True)

    def _let_through(self, running: int) -> None:
        """Serve hands a replica as many requests as it is to run, at least."""
        server = self._server()
        if isinstance(ongoing := server.get("max_ongoing_requests", MAX_ONGOING_REQUESTS), int) and ongoing < running:
            server["max_ongoing_requests"] = running

    def _scale(self, least: int, most: int) -> None:
        server = self._server()
        if least == most:
            server.pop("autoscaling_config", None)
            server["num_replicas"] = least
        else:
            server.pop("num_replicas", None)
            self._part(server, "autoscaling_config").update({"min_replicas": least, "max_replicas": most})
        args = self._part(self._application, "args")
        # Fewer replicas than may share a machine would leave CPUs of it idle.
        default = GooseConfig.model_fields["replicas_per_node"].default
        if isinstance(most_here := args.get("replicas_per_node", default), int):
            args["replicas_per_node"] = min(most_here, most)

    def _server(self) -> dict[str, Any]:
        """What the file says of GooseServer, put there if it says nothing."""
        deployments: list[dict[str, Any]] = self._application.setdefault("deployments", [])
        for one in deployments:
            if one["name"] == "GooseServer":
                return one
        deployments.append({"name": "GooseServer"})
        return deployments[-1]

    @staticmethod
    def _part(of: dict[str, Any], name: str) -> dict[str, Any]:
        """The mapping under `name`, made if it is not there or empty."""
        if not of.get(name):
            of[name] = {}
        part: dict[str, Any] = of[name]
        return part


def _require_mapping(of: dict[str, Any], name: str) -> None:
    """Or nothing, as where all that stood below it is commented out: then it is taken away. Raises ConfigError."""
    if not isinstance(of.get(name), dict | None):
        raise ConfigError(f"{name}: must be a mapping, not {shown(of[name])}")
    if name in of and of[name] is None:
        del of[name]
