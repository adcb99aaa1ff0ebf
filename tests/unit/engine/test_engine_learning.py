"""Tuning and taking along through the engine loop: between steps, and never at the expense of an output."""

import asyncio

import pytest
from engine_helpers import ScriptedSpeculator, make_engine, make_request
from engine_loops import running
from fakes import looping_model

from goose.policies.registry import POLICIES
from goose.speculator import Speculator
from goose.tuning import TreeTuning
from goose.tuning_counts import TuningCounts
from goose_ray.engine.loop import EngineLoop
from goose_ray.errors import EngineDeadError

MODEL = looping_model()
EXTREME = (
    TreeTuning(version=1, offsets=(-2.0, 2.0, 2.0), temperature=0.6),
    TreeTuning(version=2, offsets=(2.0, -2.0, -2.0), temperature=1.6),
)


async def tokens_of(loop: EngineLoop, request_id: str) -> list[int]:
    request = make_request(request_id, (1, 2, 3, 4, 1, 2), max_tokens=60, ignore_eos=True)
    return [token async for output in loop.generate(request) for token in output.token_ids]


def test_outputs_are_the_same_under_extreme_tunings() -> None:
    async def scenario() -> None:
        with running(make_engine(MODEL, Speculator(policy="anisotropic", budget=8))) as loop:
            tokens = [await tokens_of(loop, "plain")]
            for tuning in EXTREME:
                loop.tune(tuning)
                tokens.append(await tokens_of(loop, f"tuned-{tuning.version}"))
                assert loop.tuning == tuning
            assert len(tokens[0]) == 60
            assert tokens[1] == tokens[2] == tokens[0]
            assert loop.tuning_counts().num_trees > 0
            assert (found := await loop.learned(1000)) is not None
            assert len(found.texts) == 3

    asyncio.run(scenario())


def test_a_speculator_that_learns_nothing_is_left_alone() -> None:
    async def scenario() -> None:
        with running(make_engine(MODEL, ScriptedSpeculator(MODEL))) as loop:
            loop.tune(EXTREME[0])
            assert await loop.learned(1000) is None
            assert loop.tuning == TreeTuning()

    asyncio.run(scenario())


def test_a_fault_in_tuning_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Faulty(Speculator):
        def tune(self, tuning: TreeTuning) -> None:
            raise ZeroDivisionError

        def tuning_counts(self) -> TuningCounts:
            raise ZeroDivisionError

    async def scenario() -> None:
        with running(make_engine(MODEL, Faulty(policy="chain", builders=POLICIES))) as loop:
            loop.tune(EXTREME[0])
            assert len(await tokens_of(loop, "r")) == 60
            assert loop.tuning == TreeTuning()
            assert loop.tuning_counts().num_trees == 0

    asyncio.run(scenario())
    assert "could not be tuned" in caplog.text


def test_an_engine_that_has_ended_answers_no_more() -> None:
    async def scenario() -> None:
        with running(make_engine(MODEL, Speculator(policy="chain"))) as loop:
            pass
        loop.tune(EXTREME[0])
        with pytest.raises(EngineDeadError):
            await loop.learned(1000)

    asyncio.run(scenario())
