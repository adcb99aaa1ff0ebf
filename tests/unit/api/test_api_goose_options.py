"""`goose: {policy, budget, enabled}` of a request, over a real engine and real policies: speed, never the answer."""

from collections.abc import Iterator
from typing import Any, Literal

import pytest
from engine_app import EngineApp, Http
from fakes import looping_model
from scripted_engine import modelled

from goose.speculator import AUTOMATIC_NODES, Speculator
from goose_ray.api.context import nodes_of_auto
from goose_ray.config import EngineConfig

PATH = "/v1/completions"
BODY: dict[str, Any] = {
    "prompt": [5, 6, 7],
    "max_tokens": 80,
    "temperature": 0,
    "ignore_eos": True,
    "return_goose_stats": True,
    "return_token_ids": True,
}


@pytest.fixture(scope="module")
def app() -> Iterator[EngineApp]:
    speculator = Speculator(policy="chain", budget=8)
    with EngineApp.serving(modelled(looping_model(256), speculator)) as app:
        yield app


def answer(app: EngineApp, **goose: Any) -> tuple[list[int], Any]:
    whole = app.whole(PATH, **BODY, **({"goose": goose} if goose else {}))
    return whole["choices"][0]["token_ids"], whole["goose"]


@pytest.mark.parametrize("budget", [1, 2, 5, 64])
@pytest.mark.parametrize("policy", ["chain", "recycling", "suffix", "balanced"])
def test_no_step_verifies_more_than_the_budget(app: EngineApp, policy: str, budget: int) -> None:
    plain, _ = answer(app, enabled=False)
    tokens, stats = answer(app, policy=policy, budget=budget)
    assert tokens == plain
    assert stats["drafted"] <= stats["steps"] * (budget - 1)


def test_a_smaller_budget_than_the_deployments_drafts_less_and_a_larger_one_more(app: EngineApp) -> None:
    drafted = [answer(app, **({"budget": budget} if budget else {}))[1]["steps"] for budget in (2, None, 20)]
    assert drafted[0] > drafted[1] > drafted[2]


def test_auto_is_the_deployments_where_that_is_automatic(app: EngineApp) -> None:
    assert answer(app, budget="auto") == answer(app)
    assert answer(app, budget="auto", policy="suffix") == answer(app, policy="suffix")


def test_auto_is_a_number_where_the_deployments_is_one() -> None:
    speculator = Speculator(policy="chain", budget=2)
    with EngineApp.serving(modelled(looping_model(256), speculator), nodes_of_auto=20) as app:
        automatic = answer(app, budget="auto")
        assert automatic == answer(app, budget=20)
        assert automatic[1]["steps"] < answer(app)[1]["steps"]


@pytest.mark.parametrize(
    ("budget", "max_batch_rows", "nodes"), [("auto", 512, None), (16, 512, AUTOMATIC_NODES), (16, 32, 32)]
)
def test_what_auto_stands_for(budget: int | Literal["auto"], max_batch_rows: int, nodes: int | None) -> None:
    assert nodes_of_auto(EngineConfig(budget=budget, max_batch_rows=max_batch_rows)) == nodes


def test_what_is_not_enabled_is_decoded_one_token_a_step(app: EngineApp) -> None:
    _, stats = answer(app, enabled=False)
    assert (stats["drafted"], stats["tau"]) == (0, 1.0)
    assert answer(app, enabled=True)[1]["drafted"] > 0


@pytest.mark.parametrize(
    ("goose", "param"),
    [
        ({"budget": 0}, "goose.budget"),
        ({"budget": 65}, "goose.budget"),
        ({"budget": 2**70}, "goose.budget"),
        ({"budget": True}, "goose.budget"),
        ({"budget": 8.0}, "goose.budget"),
        ({"budget": "8"}, "goose.budget"),
        ({"budget": "automatic"}, "goose.budget"),
        ({"budget": ["auto"]}, "goose.budget"),
        ({"policy": "swan"}, "goose.policy"),
        ({"policy": "chain", "enabled": False}, "goose.policy"),
        ({"enabled": 1}, "goose.enabled"),
    ],
)
def test_a_wrong_choice_is_named(app: EngineApp, goose: dict[str, Any], param: str) -> None:
    async def send(http: Http) -> tuple[int, str]:
        response = await http.post(PATH, json={"model": "tiny", **BODY, "goose": goose})
        return response.status_code, response.json()["error"]["param"]

    assert app.run(send) == (400, param)
