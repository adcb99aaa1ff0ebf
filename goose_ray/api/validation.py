"""From the bytes of an HTTP request to a wire model, or to an error that names the field.

Knows pydantic's errors and OpenAI's wording of them; knows no particular request.
"""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from goose_ray.errors import InvalidRequestError

__all__ = ["VARIANT", "RequestParser", "WireModel", "only_neutral", "parse_request", "shortened"]

_Model = TypeVar("_Model", bound=BaseModel)
# Begins the tags of unions' members, which are no part of a field's path.
VARIANT = "~"
_SHOWN_CHARS = 60
# Up to here parsing takes less than a millisecond or two, and a thread would cost more than it saves.
_INLINE_BYTES = 64 * 1024


class WireModel(BaseModel):
    """Base of everything a client sends: unknown fields, coercions ("0.5" for 0.5) and NaN are refused.

    Pydantic collects every error of a value, which of a large one is millions, at a kilobyte each: lists of wire
    models are to `fail_fast`, and dicts are checked by validators that stop at the first fault.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_the_first_unknown_field(cls, value: Any) -> Any:
        if isinstance(value, dict):
            for name in value:
                if name not in cls.model_fields and all(name != field.alias for field in cls.model_fields.values()):
                    raise PydanticCustomError("unknown_field", "unknown field", {"at": name})
        return value


class only_neutral:
    """A known field that is not implemented: null and the `neutral` values pass, anything else is refused by name.

    Ignoring such a field would answer another question than the one asked. To be used in `Annotated`.
    """

    def __init__(self, *neutral: Any) -> None:
        self.neutral = neutral

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": [None, *self.neutral], "description": "Not supported: refused unless it changes nothing."}

    def _check(self, value: Any, info: ValidationInfo) -> Any:
        if value is None or value in self.neutral:
            return value
        raise PydanticCustomError("not_supported", "not supported yet", {"field": info.field_name})


def parse_request(model: type[_Model], content_type: str | None, body: bytes) -> _Model:
    """Raises InvalidRequestError whose `param` names the field at fault."""
    media_type = (content_type or "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise InvalidRequestError(
            f"Content-Type must be application/json, not {media_type or 'absent'}",
            param="content-type",
            code="unsupported_media_type",
            status=415,
        )
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise _from_details(error.errors(include_url=False)[0]) from None


class RequestParser:
    """`parse_request` that lets no event loop wait for a large body. To be shared by all requests of a process."""

    def __init__(self) -> None:
        # One: parsing holds the interpreter lock most of the time, so a second would only take more memory.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="goose-parse")

    async def parse(self, model: type[_Model], content_type: str | None, body: bytes) -> _Model:
        """As `parse_request`."""
        if len(body) <= _INLINE_BYTES:
            return parse_request(model, content_type, body)
        return await asyncio.get_running_loop().run_in_executor(
            self._executor, parse_request, model, content_type, body
        )


def _from_details(details: ErrorDetails) -> InvalidRequestError:
    describe = _DESCRIPTIONS.get(details["type"], _describe_value)
    # where our own validators found it, below the value that they were given
    inner = details.get("ctx", {}).get("at")
    param = _field_path(details["loc"] if inner is None else (*details["loc"], inner))
    message, code = describe(param, details)
    return InvalidRequestError(message, param=param, code=code)


def _field_path(location: tuple[int | str, ...]) -> str:
    """`("messages", 0, "role")` as clients write it: `messages[0].role`."""
    path = ""
    for part in location:
        if isinstance(part, str) and part.startswith(VARIANT):
            continue
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return shortened(path) or ('""' if location else "body")


def _describe_extra(param: str, details: ErrorDetails) -> tuple[str, str | None]:
    return f"Unrecognized request argument supplied: {param}", "unrecognized_argument"


def _describe_missing(param: str, details: ErrorDetails) -> tuple[str, str | None]:
    return f"Missing required parameter: '{param}'", "missing_required_parameter"


def _describe_json(param: str, details: ErrorDetails) -> tuple[str, str | None]:
    reason = details.get("ctx", {}).get("error", details["msg"])
    return f"The request body is not valid JSON: {reason}", "invalid_json"


def _describe_unsupported(param: str, details: ErrorDetails) -> tuple[str, str | None]:
    return f"{param} is not supported yet", "unsupported_parameter"


def _describe_length(param: str, details: ErrorDetails) -> tuple[str, str | None]:
    limits = details.get("ctx", {})
    if "min_length" in limits:
        return f"Invalid value for '{param}': it needs at least {limits['min_length']} item, not none", "invalid_value"
    if "max_length" not in limits:
        return _describe_value(param, details)
    return f"Invalid value for '{param}': it may have at most {limits['max_length']} items", "invalid_value"


def _describe_value(param: str, details: ErrorDetails) -> tuple[str, str | None]:
    given, at = details["input"], details.get("ctx", {}).get("at")
    if isinstance(given, dict) and isinstance(at, str):
        given = given.get(at)
    return f"Invalid value for '{param}': {details['msg']}, not {_as_json(given)}", "invalid_value"


def _as_json(value: Any) -> str:
    """As the client wrote it, shortened; of a large value no more is written out than is shown."""
    shown = ""
    given = value[:_SHOWN_CHARS] if isinstance(value, str) else value
    for part in json.JSONEncoder(ensure_ascii=False).iterencode(given):
        shown += part[:_SHOWN_CHARS]
        if len(shown) > _SHOWN_CHARS:
            break
    return shortened(shown)


def shortened(text: str) -> str:
    """For an error that repeats what a client sent."""
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."


_DESCRIPTIONS: dict[str, Callable[[str, ErrorDetails], tuple[str, str | None]]] = {
    "json_invalid": _describe_json,
    "missing": _describe_missing,
    "too_long": _describe_length,
    "too_short": _describe_length,
    "not_supported": _describe_unsupported,
    "unknown_field": _describe_extra,
}
