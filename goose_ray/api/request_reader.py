"""A request's body as the wire model of its endpoint, for the one model that is served."""

from typing import TypeVar

from starlette.requests import Request

from goose_ray.api.body import read_body
from goose_ray.api.validation import RequestParser, WireModel, shortened
from goose_ray.errors import InvalidRequestError

__all__ = ["RequestReader"]

_Wire = TypeVar("_Wire", bound=WireModel)


class RequestReader:
    """To be shared by all routes of a process."""

    def __init__(self, model: str, *, max_body_bytes: int, body_timeout_s: float) -> None:
        self.model = model
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s
        self._parser = RequestParser()

    async def read(self, wire: type[_Wire], request: Request) -> _Wire:
        """Raises InvalidRequestError naming the field at fault, starlette's ClientDisconnect if the client leaves."""
        body = await read_body(request, self._max_body_bytes, timeout_s=self._body_timeout_s)
        return await self._parser.parse(wire, request.headers.get("content-type"), body)

    def check_model(self, name: str) -> None:
        """Raises InvalidRequestError, of status 404, for another model than the one that is served."""
        if name != self.model:
            raise InvalidRequestError(
                f"The model '{shortened(name)}' does not exist; this server has '{self.model}'",
                param="model",
                code="model_not_found",
                status=404,
            )
