"""What is wrong with a configuration, in the words of whoever wrote it. Knows no option."""

import re
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

__all__ = ["first_problem", "shown", "without_texts"]

_TYPES = ("str", "int", "float", "bool")


def first_problem(
    error: ValidationError, model: type[BaseModel], *, where: str = "", secrets: Collection[str] = ()
) -> str:
    """The field by its path, which begins with `where`, the problem and the value; of a misspelled field of `model` or
    of one of its parts the one that was meant. Values of `secrets` are not shown, nor what has parts, which may hold
    some.
    """
    first = error.errors(include_url=False)[0]
    loc, value = first["loc"], first["input"]
    field = ".".join([*filter(None, [where]), *(str(name) for name in loc if _is_field(name))])
    if first["type"] == "extra_forbidden":
        near = get_close_matches(str(loc[-1]), _options_at(model, loc[:-1]), 1)
        return f"{field}: there is no such option" + (f"; did you mean {near[0]}?" if near else "")
    problem = first["msg"].removeprefix("Value error, ")
    if not field:
        return problem
    # a problem of several fields names them
    is_shown = loc and field not in secrets and "runtime_env" not in loc
    # these are pydantic's own words, which repeat nothing
    is_type = first["type"].endswith("_type")
    if not is_type and not (is_shown and _is_plain(value)):
        problem = without_texts(problem, value)
    if is_shown and _is_plain(value):
        problem += f", not {value!r}"
    elif is_shown and is_type and (kind := _kind_of(value)):
        problem += f", not {kind}"
    return f"{field}: {problem}"


def shown(value: object) -> str:
    """What has parts may hold secrets."""
    return _kind_of(value) or repr(value)


def _kind_of(value: object) -> str | None:
    """Of what has parts."""
    return "a mapping" if isinstance(value, Mapping) else "a list" if isinstance(value, list | tuple) else None


def without_texts(problem: str, value: object) -> str:
    """`problem` without what it repeats of `value`: its texts, and what has parts."""
    for text, instead in sorted(_quotes(value), key=lambda quote: len(quote[0]), reverse=True):
        # a short text would else be found in the middle of words
        problem = re.sub(rf"(?<!\w){re.escape(text)}(?!\w)", instead, problem)
    return problem


def _quotes(value: object) -> Iterator[tuple[str, str]]:
    """How a problem's words may repeat `value` or a part of it, and what to say instead."""
    if isinstance(value, str):
        if value:
            yield value, "..."
            # what is escaped there
            yield repr(value)[1:-1], "..."
    elif isinstance(value, Mapping | list | tuple):
        if value:
            yield str(value), shown(value)
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _quotes(part)
    elif not _is_plain(value):
        yield from ((repr(value), "..."), (str(value), "..."))


def _options_at(model: type[BaseModel], loc: tuple[str | int, ...]) -> list[str]:
    """Fields of what is at `loc` in `model`; none where that is no model."""
    models = [model]
    for name in loc:
        # else a place in a list, a key of a mapping or pydantic's name of a member of a union
        if any(name in one.model_fields for one in models):
            fields = [one.model_fields[str(name)] for one in models if name in one.model_fields]
            models = [inner for field in fields for inner in _models_in(field.annotation)]
    return [name for one in models for name in one.model_fields]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """`list[Model]`, `Model | None` and the like hold one."""
    if parts := get_args(annotation):
        for part in parts:
            yield from _models_in(part)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation


def _is_field(name: str | int) -> bool:
    """Or pydantic's name of a member of a union."""
    return str(name).replace("_", "").isalnum() and name not in _TYPES


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float | None)
