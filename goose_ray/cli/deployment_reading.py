"""Where files of deployments are, and the YAML that one holds. Knows nothing of what it should say."""

import json
import os
import re
import shlex
from importlib.resources import files
from pathlib import Path
from stat import S_ISREG
from typing import Any

import yaml

from goose_ray.config import EMBEDDED_MODEL
from goose_ray.errors import ConfigError

__all__ = ["find_deployment", "read_deployment", "shipped_deployments"]

# Of the hub, as far as it can be told from the name of a file that there is not.
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(?<!\.yaml)(?<!\.yml)(?<!\.json)")
_TAGS = "tag:yaml.org,2002:"
# What PyYAML quotes besides texts of the file: a character, or a token by its name.
_HARMLESS = re.compile(r"""([^'"]|'(\\?.|\\x..|\\u....|<[a-z]+( [a-z]+)*>)'|"'")*""", re.DOTALL)


def shipped_deployments() -> dict[str, Path]:
    """By name: in an installed package beside the code, in a clone in `deployments/`."""
    package = Path(str(files("goose_ray")))
    for folder in (package / "deployments", package.parent / "deployments"):
        if found := {file.stem: file for file in sorted(folder.glob("*.yaml"))}:
            return found
    return {}


def find_deployment(name: str) -> Path:
    """A path, or the name of one that comes along. Raises ConfigError if it is neither."""
    shipped = shipped_deployments()
    if not name:
        raise ConfigError(f"config: must be a file, or a deployment that comes along ({', '.join(shipped)}), not ''")
    try:
        path = Path(name).expanduser()
        # looks at what it is before anything opens it: a pipe would wait for a writer
        if S_ISREG(path.stat().st_mode):
            return path
        problem = f"{name!r} is no regular file"
    except FileNotFoundError:
        problem = f"there is no file {name!r}"
    except (OSError, RuntimeError, ValueError) as error:
        # no such user, a folder that may not be searched, a name that is too long
        reason = error.strerror if isinstance(error, OSError) else str(error)
        problem = f"{name!r} cannot be looked at ({reason})"
    if name in shipped:
        return shipped[name]
    problem += f", and of the deployments that come along ({', '.join(shipped)}) none"
    if _is_model(name):
        command = f"goose serve {shlex.quote(name)} --print-config > deployment.yaml"
        problem += f"; a model? `{command}` writes a deployment of it"
    raise ConfigError(problem)


def _is_model(name: str) -> bool:
    # of os, which takes whatever cannot be looked at for no file
    is_local = name.endswith(".gguf") or os.path.isfile(os.path.join(name, "config.json"))
    return name == EMBEDDED_MODEL or is_local or _HUB_ID.fullmatch(name) is not None


def read_deployment(path: Path) -> Any:
    """Raises ValueError saying what is wrong with it, without its text, which may hold secrets."""
    try:
        # a SafeLoader
        document = yaml.load(path.read_text(encoding="utf-8"), _Loader)
        # aliases may put a part into itself
        json.dumps(document, default=str, skipkeys=True)
    except yaml.MarkedYAMLError as error:
        problem = _without_texts(error.problem or "") or "it is no YAML"
        raise ValueError(f"{_place(error.problem_mark)}{problem}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (OSError, yaml.YAMLError, ValueError) as error:
        raise ValueError(str(error)) from error
    return document


class _MisfitError(ValueError):
    """A value that is not what its tag says."""


class _Loader(yaml.SafeLoader):
    """Raises ValueError for a key that stands twice in a mapping, of which PyYAML takes the last one without a word,
    and _MisfitError, where PyYAML raises whatever comes.
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # here what `<<` merges, which a mapping may overrule, is not yet part of it
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != f"{_TAGS}merge":
                known = (key.tag, key.value)
                if known in lines:
                    place = _place(key.start_mark)
                    raise ValueError(f"{place}the key {key.value!r} is there already, in line {lines[known]}")
                lines[known] = key.start_mark.line + 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except _MisfitError:
            raise
        except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError):
            kind = node.tag.removeprefix(_TAGS)
            raise _MisfitError(f"{_place(node.start_mark)}the value is no valid {kind}") from None


def _place(mark: yaml.error.Mark | None) -> str:
    return "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "


def _without_texts(problem: str) -> str:
    """Where it quotes a text of the file, up to there."""
    if problem == "second occurrence":
        # what it is of stands, quoted, in the error's context
        return "found duplicate anchor"
    if _HARMLESS.fullmatch(problem):
        return problem
    return re.split("['\"]", problem, maxsplit=1)[0].rstrip(" :")
