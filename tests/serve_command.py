"""`goose serve` in this process, and the YAML that it prints."""

from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner, Result

from goose_ray.cli.main import main

DEPLOYMENTS = Path(__file__).parents[1] / "deployments"


def serve(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["serve", *map(str, arguments)])


def printed(*arguments: object) -> dict[str, Any]:
    result = serve(*arguments, "--print-config")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = yaml.safe_load(result.stdout)
    return document


def args_of(document: dict[str, Any]) -> dict[str, Any]:
    (application,) = document["applications"]
    args: dict[str, Any] = application["args"]
    return args


def goose_server(document: dict[str, Any]) -> dict[str, Any]:
    (application,) = document["applications"]
    (server,) = [one for one in application["deployments"] if one["name"] == "GooseServer"]
    found: dict[str, Any] = server
    return found
