"""Clients that leave, and what the cluster says of itself meanwhile."""

import asyncio

import httpx
import openai
import pytest

from serve.helpers import MODEL, Server, eventually
from serve.openai_api.events import events_of

# of deployments/goose.yaml
MAX_ONGOING = 32


LONG = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 900, "ignore_eos": True}


class TestDisconnect:
    def steps_so_far(self, server: Server) -> int:
        return int(server.metric("goose_steps_total"))

    @pytest.mark.parametrize("policy", ["autoregressive", "goose"])
    def test_in_mid_stream(self, server: Server, policy: str) -> None:
        assert server.is_idle()
        body = {"model": MODEL, **LONG, "stream": True, "goose": {"policy": policy}}
        with server.http.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200
            events = events_of(response.iter_lines())
            for _ in range(4):
                next(events)
            assert server.metric("vllm:num_requests_running") == 1
            assert server.metric("goose_kv_slots_used") > 0
        eventually(lambda: server.is_idle(), within_s=10, what="the sequence and its slots to be free")
        steps = self.steps_so_far(server)
        server.chat("Hi", max_tokens=1)
        assert self.steps_so_far(server) <= steps + 2, "the abandoned request went on being computed"

    @pytest.mark.parametrize("stream", [False, True])
    def test_while_waiting_for_the_answer(self, server: Server, stream: bool) -> None:
        def is_running() -> bool:
            return server.metric("vllm:num_requests_running") == 1

        async def scenario() -> None:
            async with httpx.AsyncClient(base_url=server.url, timeout=120) as http:
                body = {"model": MODEL, **LONG, "stream": stream}
                sending = asyncio.create_task(http.post("/v1/chat/completions", json=body))
                await asyncio.to_thread(eventually, is_running, within_s=30, what="the request to run")
                sending.cancel()
                await asyncio.wait([sending])

        asyncio.run(scenario())
        eventually(lambda: server.is_idle(), within_s=10, what="the sequence and its slots to be free")


class TestCluster:
    def test_models_and_health(self, server: Server, client: openai.OpenAI) -> None:
        assert [model.id for model in client.models.list()] == [MODEL]
        assert client.models.retrieve(MODEL).id == MODEL
        assert server.get("/health") == {"status": "ok", "replicas": {"live": 1, "healthy": 1}}

    def test_metrics_count_what_was_delivered(self, server: Server) -> None:
        names = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total", "goose_time_to_first_token_seconds_count")
        before = [server.metric(name) for name in names]
        usage = server.chat("Hi", max_tokens=5)["usage"]
        after = [server.metric(name) for name in names]
        assert [b - a for a, b in zip(before, after, strict=True)] == [
            usage["completion_tokens"],
            usage["prompt_tokens"],
            1,
        ]

    def test_a_full_replica_is_still_seen_and_healthy(self, server: Server) -> None:
        """Control calls wait for a place as requests do; what is shown then is what the aggregator remembers."""
        body = {"model": MODEL, **LONG, "stream": True, "goose": {"policy": "autoregressive"}}

        async def scenario() -> list[httpx.Response]:
            async with httpx.AsyncClient(base_url=server.url, timeout=120) as http:
                filling = [
                    asyncio.create_task(http.post("/v1/chat/completions", json=body)) for _ in range(MAX_ONGOING)
                ]
                await asyncio.to_thread(eventually, is_full, within_s=60, what="a full replica")
                answers = [await http.get(path) for path in ("/health", "/metrics", "/v1/models")]
                for request in filling:
                    request.cancel()
                await asyncio.wait(filling)
            return answers

        def is_full() -> bool:
            return (
                server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting") == MAX_ONGOING
            )

        assert [answer.status_code for answer in asyncio.run(scenario())] == [200, 200, 200]
        eventually(server.is_idle, within_s=30, what="the abandoned requests to be gone")
