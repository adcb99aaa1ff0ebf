"""From the bytes of an HTTP request to a wire model, or to an error that names the field.

Knows pydantic's errors and OpenAI's wording of them; knows no particular request.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, ValidationInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from goose_ray.errors import InvalidRequestError

__all__ = ["WireModel", "only_neutral", "parse_request"]

_Model = TypeVar("_Model", bound=BaseModel)
_SHOWN_CHARS = 60


class WireModel(BaseModel):
    """Base of everything a client sends: unknown fields and coercions ("0.5" for 0.5) are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def only_neutral(*neutral: Any) -> AfterValidator:
    """A known field that is not implemented: null and the `neutral` values pass, anything else is refused by name.

    Ignoring such a field would answer another question than the one asked.
    """

    def check(value: Any, info: ValidationInfo) -> Any:
        if value is None or value in neutral:
            return value
        raise PydanticCustomError("not_supported", "not supported yet", {"field": info.field_name})

    return AfterValidator(check)


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


def _from_details(details: ErrorDetails) -> InvalidRequestError:
    describe = _DESCRIPTIONS.get(details["type"], _describe_value)
    param = _field_path(details["loc"])
    message, code = describe(param, details)
    return InvalidRequestError(message, param=param, code=code)


def _field_path(location: tuple[int | str, ...]) -> str:
    """`("messages", 0, "role")` as clients write it: `messages[0].role`."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path or "body"


def _describe_extra(param: str, details: ErrorDetails) -> tuple[str, str | None]:
    return f"Unrecognized request argument supplied: {param}", "unrecognized_argument"


def _describe_missing(param: str, details: ErrorDetails) -> tuple[str, str | None]:
    return f"Missing required parameter: '{param}'", "missing_required_parameter"


def _describe_json(param: str, details: ErrorDetails) -> tuple[str, str | None]:
    reason = details.get("ctx", {}).get("error", details["msg"])
    return f"The request body is not valid JSON: {reason}", "invalid_json"


def _describe_unsupported(param: str, details: ErrorDetails) -> tuple[str, str | None]:
    return f"{param} is not supported yet", "unsupported_parameter"


def _describe_value(param: str, details: ErrorDetails) -> tuple[str, str | None]:
    shown = repr(details["input"])
    if len(shown) > _SHOWN_CHARS:
        shown = shown[: _SHOWN_CHARS - 3] + "..."
    return f"Invalid value for '{param}': {details['msg']}, not {shown}", "invalid_value"


_DESCRIPTIONS: dict[str, Callable[[str, ErrorDetails], tuple[str, str | None]]] = {
    "extra_forbidden": _describe_extra,
    "json_invalid": _describe_json,
    "missing": _describe_missing,
    "not_supported": _describe_unsupported,
}
