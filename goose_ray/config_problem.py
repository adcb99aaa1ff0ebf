"""What is wrong with a configuration, in the words of whoever wrote it. Knows no option."""

from collections.abc import Collection
from difflib import get_close_matches

from pydantic import BaseModel, ValidationError

__all__ = ["first_problem"]


def first_problem(
    error: ValidationError, model: type[BaseModel], *, where: str = "", secrets: Collection[str] = ()
) -> str:
    """The field by its path, which begins with `where`, the problem and the value; of a misspelled field of `model` or
    of one of its parts the one that was meant. Values of `secrets` are not shown.
    """
    first = error.errors(include_url=False)[0]
    # pydantic's own names of the members of a union are no fields
    names = (str(name) for name in first["loc"] if not str(name).startswith("constrained-"))
    field = ".".join([*filter(None, [where]), *names])
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
    if not first["loc"]:
        # of several fields, which the problem names
        return f"{field}: {problem}"
    return f"{field}: {problem}" if field in secrets else f"{field}: {problem}, not {first['input']!r}"
