"""Routes that show the cluster: its health, numbers and dashboard. Nothing here answers a prompt."""

import asyncio
import time
from typing import Annotated

from fastapi import Query
from starlette.responses import JSONResponse, Response

from goose_ray.api.backend import Backend
from goose_ray.api.cluster_views import acceptance_view, health_view, steps_view
from goose_ray.telemetry.dashboard.live import live_view
from goose_ray.telemetry.dashboard.page import dashboard_page
from goose_ray.telemetry.metrics import METRICS_CONTENT_TYPE, render_metrics

__all__ = ["ClusterRoutes"]


class ClusterRoutes:
    """`model` is the name in the API."""

    def __init__(self, backend: Backend, model: str) -> None:
        self._backend = backend
        self._model = model

    async def acceptance(self) -> Response:
        return JSONResponse(acceptance_view(await self._backend.cluster()))

    async def steps(self, last: Annotated[int, Query(ge=1)] = 64) -> Response:
        return JSONResponse(steps_view(await self._backend.steps(last)))

    async def live(self, since: Annotated[float, Query(allow_inf_nan=False)] = 0.0) -> Response:
        state, replicas = await asyncio.gather(self._backend.cluster(), self._backend.live(since))
        shown = live_view(
            state.view, replicas, model=self._model, remembered=state.remembered, since=since, now=time.time()
        )
        return JSONResponse(shown, headers={"Cache-Control": "no-store"})

    async def dashboard(self) -> Response:
        page = dashboard_page()
        return Response(page.html, media_type=page.media_type, headers=page.headers)

    async def health(self) -> Response:
        view = (await self._backend.cluster()).view
        return JSONResponse(health_view(view), status_code=200 if view.healthy else 503)

    async def metrics(self) -> Response:
        view = (await self._backend.cluster()).view
        return Response(render_metrics(view, self._model), media_type=METRICS_CONTENT_TYPE)
