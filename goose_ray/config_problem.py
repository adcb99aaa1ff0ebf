"""What is wrong with a configuration, in the words of whoever wrote it. Knows no option."""

from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches

from pydantic import BaseModel, ValidationError

__all__ = ["first_problem"]

_TYPES = ("str", "int", "float", "bool")


def first_problem(
    error: ValidationError, model: type[BaseModel], *, where: str = "", secrets: Collection[str] = ()
) -> str:
    """The field by its path, which begins with `where`, the problem and the value; of a misspelled field of `model` or
    of one of its parts the one that was meant. Values of `secrets` are not shown, nor mappings, which may hold some.
    """
    first = error.errors(include_url=False)[0]
    field = ".".join([*filter(None, [where]), *(str(name) for name in first["loc"] if _is_field(name))])
    if first["type"] == "extra_forbidden":
        part = model
        for name in first["loc"][:-1]:
            inner = part.model_fields[str(name)].annotation
            part = inner if isinstance(inner, type) and issubclass(inner, BaseModel) else part
        near = get_close_matches(str(first["loc"][-1]), part.model_fields, 1)
        return f"{field}: there is no such option" + (f"; did you mean {near[0]}?" if near else "")
    problem = first["msg"].removeprefix("Value error, ")
    if not field:
        return problem
    # a problem of several fields names them
    is_shown = first["loc"] and field not in secrets and "runtime_env" not in first["loc"]
    if not is_shown:
        for text in sorted(_texts(first["input"]), key=len, reverse=True):
            problem = problem.replace(text, "...")
    value = f", not {first['input']!r}" if is_shown and _is_plain(first["input"]) else ""
    return f"{field}: {problem}{value}"


def _texts(value: object) -> Iterator[str]:
    """Strings in it, which a problem's words may repeat."""
    if isinstance(value, str) and value:
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)


def _is_field(name: str | int) -> bool:
    """Or pydantic's name of a member of a union."""
    return str(name).replace("_", "").isalnum() and name not in _TYPES


def _is_plain(value: object) -> bool:
    parts = value if isinstance(value, list | tuple) else [value]
    return all(isinstance(one, str | int | float | None) for one in parts)
