"""`goose: {policy, budget, enabled}` of a request, over a real engine and real policies: speed, never the answer."""

from collections.abc import Iterator
from typing import Any

import pytest
from engine_app import EngineApp, Http
from fakes import looping_model
from scripted_engine import modelled

from goose.speculator import Speculator

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
        ({"budget": "auto"}, "goose.budget"),
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
