"""Routes that tell about the model and the server: names, tokens, version, where the rest is. None runs the model."""

from importlib.metadata import version

from fastapi import Request
from starlette.responses import JSONResponse, Response

from goose_ray.api.backend import Backend
from goose_ray.api.reply import Reply
from goose_ray.api.request_reader import RequestReader
from goose_ray.api.responses import ModelList, ModelObject
from goose_ray.api.tokens import DetokenizeReply, DetokenizeRequest, TokenizeReply, TokenizeRequest
from goose_ray.errors import EngineDeadError

__all__ = ["ModelRoutes"]

_OWNER = "goose-ray"
_INDEX = {
    "models": "/v1/models",
    "chat": "/v1/chat/completions",
    "dashboard": "/dashboard",
    "health": "/health",
    "metrics": "/metrics",
    "openapi": "/openapi.json",
}


class ModelRoutes:
    def __init__(self, backend: Backend, reader: RequestReader) -> None:
        self._backend = backend
        self._reader = reader

    async def index(self, request: Request) -> Response:
        """For whoever opens the bare address. Asks nobody, so that it is there when no replica is."""
        prefix = request.scope.get("root_path", "")
        return JSONResponse(
            {
                "name": _OWNER,
                "version": version(_OWNER),
                "model": self._reader.model,
                "routes": {name: prefix + path for name, path in _INDEX.items()},
            }
        )

    async def models(self) -> Response:
        return _json(ModelList(object="list", data=[await self._model_object()]))

    async def model(self, name: str) -> Response:
        self._reader.check_model(name)
        return _json(await self._model_object())

    async def tokenize(self, request: Request) -> Response:
        wire = await self._reader.read(TokenizeRequest, request)
        if wire.model is not None:
            self._reader.check_model(wire.model)
        return _json(TokenizeReply.of(await self._backend.encode(wire.to_call())))

    async def detokenize(self, request: Request) -> Response:
        wire = await self._reader.read(DetokenizeRequest, request)
        if wire.model is not None:
            self._reader.check_model(wire.model)
        return _json(DetokenizeReply(prompt=await self._backend.decode(wire.to_call())))

    async def version(self) -> Response:
        return JSONResponse({"version": version(_OWNER)})

    async def _model_object(self) -> ModelObject:
        """Raises EngineDeadError if no replica could answer: a model nobody runs is not listed."""
        healthy = (await self._backend.cluster()).view.healthy
        if not healthy:
            raise EngineDeadError("no replica is healthy; one that starts is so once its model is loaded")
        report = healthy[0].report
        return ModelObject(
            id=self._reader.model,
            object="model",
            created=int(report.incarnation.started_at),
            owned_by=_OWNER,
            max_model_len=report.max_model_len,
        )


def _json(reply: Reply) -> Response:
    return Response(reply.to_json(), media_type="application/json")
