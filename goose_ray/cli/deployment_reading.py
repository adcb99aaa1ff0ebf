"""Where files of deployments are, and the YAML that one holds. Knows nothing of what it should say."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from goose_ray.errors import ConfigError

__all__ = ["find_deployment", "read_deployment", "shipped_deployments"]


def shipped_deployments() -> dict[str, Path]:
    """By name: in an installed package beside the code, in a clone in `deployments/`."""
    package = Path(str(files("goose_ray")))
    for folder in (package / "deployments", package.parent / "deployments"):
        if found := {file.stem: file for file in sorted(folder.glob("*.yaml"))}:
            return found
    return {}


def find_deployment(name: str) -> Path:
    """A path, or the name of one that comes along. Raises ConfigError if it is neither."""
    path = Path(name).expanduser()
    if path.is_file():
        return path
    shipped = shipped_deployments()
    if name in shipped:
        return shipped[name]
    raise ConfigError(f"there is no file {name!r}, and of the deployments that come along ({', '.join(shipped)}) none")


def read_deployment(path: Path) -> Any:
    """Raises ValueError saying what is wrong with it, without its text, which may hold secrets."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        # aliases may put a part into itself
        json.dumps(document, default=str, skipkeys=True)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        raise ValueError(f"{where}{error.problem}") from error
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (OSError, yaml.YAMLError, ValueError, LookupError, AttributeError) as error:
        raise ValueError(str(error)) from error
    return document
