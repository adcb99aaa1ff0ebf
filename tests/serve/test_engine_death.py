"""An engine that dies in a living process: nobody believes the replica, it is replaced, and answers go on."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from serve.helpers import MODEL, Server, async_client, eventually

APPLICATION = {
    "import_path": "faulty_app:build_app",
    "runtime_env": {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}},
}
# as in faulty_app, which is not imported: it takes Ray Serve and torch with it
POISON = 13_579
ENGINE = {"budget": 60}
SERVER = {"autoscaling_config": {"min_replicas": 1, "max_replicas": 1, "target_ongoing_requests": 8}}


def replicas(server: Server) -> list[Any]:
    found: list[Any] = server.get("/v1/goose/acceptance")["replicas"]
    return found


def test_a_replica_with_a_dead_engine_is_replaced(server: Server) -> None:
    counted = server.chat("Count from one to ten.", max_tokens=12, return_goose_stats=True)["goose"]["sources"]
    (before,) = replicas(server)
    response = server.http.post("/v1/completions", json={"model": MODEL, "prompt": [POISON]})
    assert response.status_code == 503
    assert "retry-after" in response.headers
    assert response.json()["error"]["code"] == "unavailable"

    def is_replaced() -> bool:
        return any(r["healthy"] and r["incarnation"] != before["incarnation"] for r in replicas(server))

    eventually(is_replaced, within_s=60, what="a new replica")
    assert server.chat("Hi", max_tokens=1)["choices"]
    # its last report came through
    (dead,) = [r for r in replicas(server) if r["incarnation"] == before["incarnation"]]
    assert not dead["live"] or not dead["healthy"]
    assert dead["sources"]["transitions"]["attempted"] >= counted.get("transitions", {"attempted": 0})["attempted"]


def test_an_answer_goes_on_with_the_replacement(server: Server) -> None:
    """The only replica's engine dies: the call waits for the next one, and is not spent on the one that is leaving."""
    request: dict[str, Any] = {
        "model": MODEL,
        "prompt": "Once upon a time",
        "max_tokens": 24,
        "temperature": 0.9,
        "seed": 7,
        "extra_body": {"ignore_eos": True, "goose": {"policy": "autoregressive"}},
    }

    async def scenario() -> tuple[str, str]:
        async with async_client(server) as client:
            undisturbed = (await client.completions.create(**request)).choices[0].text
            stream = await client.completions.create(**request, stream=True)
            text = (await anext(stream)).choices[0].text
            poisoning = asyncio.create_task(client.completions.create(model=MODEL, prompt=[POISON]))
            # hung up before it is tried again: it would kill the replacement as well
            await asyncio.to_thread(
                eventually, lambda: not server.is_healthy(), within_s=60, what="the end of the engine"
            )
            poisoning.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await poisoning
            async for chunk in stream:
                text += chunk.choices[0].text
        return undisturbed, text

    undisturbed, text = asyncio.run(scenario())
    assert text == undisturbed
