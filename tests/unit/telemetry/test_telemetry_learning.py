"""Offers of what replicas have learned: pooled, of one model, from whoever lives; and files that outlast the actor."""

import asyncio
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.exceptions import OwnerDiedError
from recording_builders import random_recording
from telemetry_builders import counts_of, report_of, table_of

from goose.anisotropic.calibration_file import CalibrationFile
from goose.anisotropic.features import NUM_WEIGHTS
from goose.anisotropic.fitting import known_texts
from goose.anisotropic.known_texts import KnownTexts
from goose.anisotropic.weights import Weights
from goose_ray.telemetry.acceptance_aggregator import AcceptanceAggregator
from goose_ray.telemetry.aggregator_link import AggregatorAwayError, AggregatorLink
from goose_ray.telemetry.learning_exchange import LearningExchange, fetch_start
from goose_ray.telemetry.snapshot_file import SnapshotError, SnapshotFile
from goose_ray.telemetry.starting_point import StartingPoint, joined_start, united
from goose_ray.telemetry.warm_starts import LearnedWeights, Offer, WarmStarts

TEXTS = known_texts([random_recording("r", seed=1)])


def weights(value: float, squares: float) -> Weights:
    return Weights(np.full(NUM_WEIGHTS, value), np.full(NUM_WEIGHTS, squares))


def learned(value: float, squares: float) -> LearnedWeights:
    return LearnedWeights(np.full(NUM_WEIGHTS, value), np.full(NUM_WEIGHTS, squares))


class Reference:
    """Stands in for a reference to the object store."""

    def __init__(self, value: KnownTexts | Exception) -> None:
        self._value = value

    def __await__(self) -> Any:
        async def get() -> KnownTexts:
            if isinstance(self._value, Exception):
                raise self._value
            return self._value

        return get().__await__()


class Actor:
    """An aggregator in this process, as its handle looks."""

    def __init__(self) -> None:
        self.memory = AcceptanceAggregator(live_for_s=1.0)
        for name in ("publish", "warm_start"):
            setattr(self, name, Actor.Method(getattr(self.memory, name)))

    class Method:
        def __init__(self, call: Any) -> None:
            self._call = call

        async def remote(self, argument: Any) -> Any:
            return self._call(argument)


def link_to(actor: Actor | None) -> AggregatorLink:
    async def find() -> Actor | None:
        return actor

    return AggregatorLink(find, timeout_s=5)


def started(actor: Actor | None, model: str = "m") -> StartingPoint | None:
    return asyncio.run(fetch_start(link_to(actor), model, timeout_s=5))


def test_a_new_replica_gets_the_pooled_weights_and_the_newest_texts_that_still_exist() -> None:
    actor = Actor()
    assert started(actor) is None
    gone = OwnerDiedError("", None, "")
    actor.memory.publish(Offer("a", "m", learned(1.0, 3.0), Reference(TEXTS)))
    actor.memory.publish(Offer("b", "m", learned(-1.0, 1.0), Reference(gone)))
    actor.memory.publish(Offer("c", "another", learned(9.0, 9.0), Reference(KnownTexts.none())))
    start = started(actor)
    assert start is not None
    assert start.texts.token_ids.tolist() == TEXTS.token_ids.tolist()
    assert start.weights is not None
    assert start.weights.values[0] == 0.5
    assert started(None) is None


def test_a_start_moves_the_calibration_and_comes_after_its_texts() -> None:
    base = CalibrationFile(weights(0.0, 4.0), TEXTS)
    joined = joined_start(base, StartingPoint(learned(1.0, 4.0), TEXTS), vocab_size=2000)
    assert joined.weights.values[0] == 0.8
    assert len(joined.texts) == 2
    # texts of another vocabulary are left out
    assert len(joined_start(base, StartingPoint(None, TEXTS), vocab_size=20).texts) == 1


def test_texts_of_several_replicas_are_kept_once_the_newest_last() -> None:
    a, b, c = (known_texts([random_recording(name, seed=seed)]) for seed, name in enumerate("abc"))
    found = united([a.joined(b), c.joined(a)])
    assert found.token_ids.tolist() == [*c.token_ids.tolist(), *a.token_ids.tolist(), *b.token_ids.tolist()]
    assert [text.num_prompt for text in found] == [20, 20, 20]
    assert np.array_equal(found.top_ids[-1], b.top_ids[-1])
    assert len(united([])) == 0


def test_offers_are_bounded_and_one_a_life() -> None:
    starts = WarmStarts()
    for number in range(300):
        starts.publish(Offer(f"life-{number}", "m", learned(1.0, 1.0), number))
    starts.publish(Offer("life-299", "m", learned(1.0, 5.0), "newest"))
    start = starts.start("m")
    assert start.texts == ("newest", 298, 297, 296)
    assert start.weights is not None
    assert start.weights.squares[0] == 255 + 5


class TestExchange:
    def exchange(self, found: CalibrationFile | None, offers: list[Offer]) -> LearningExchange:
        async def export(max_tokens: int) -> CalibrationFile | None:
            return found

        async def publish(offer: Offer) -> None:
            if not offers:
                offers.append(offer)
                raise AggregatorAwayError("away")
            offers.append(offer)

        return LearningExchange(
            export, publish, incarnation="a", model="m", max_tokens=100, period_s=0.001, put=lambda texts: texts
        )

    def test_what_is_new_is_offered_once_and_again_where_it_was_lost(self) -> None:
        async def scenario() -> list[Offer]:
            offers: list[Offer] = []
            exchange = self.exchange(CalibrationFile(weights(1.0, 2.0), TEXTS), offers)
            with pytest.raises(AggregatorAwayError):
                await exchange.share()
            assert await exchange.share()
            assert not await exchange.share()
            return offers

        _, offer = asyncio.run(scenario())
        assert offer.texts is TEXTS

    def test_nothing_learned_is_not_offered(self) -> None:
        assert not asyncio.run(self.exchange(None, []).share())
        assert not asyncio.run(self.exchange(CalibrationFile(weights(1.0, 0.0)), []).share())


class TestSnapshotFile:
    def test_an_aggregator_goes_on_where_the_last_one_was(self, tmp_path: Path) -> None:
        uri = f"file://{tmp_path}/deep/snapshot.json.gz"
        assert SnapshotFile(uri).read() is None
        first = AcceptanceAggregator(live_for_s=0.0)
        first.observe(report_of("a", 7, {"context": (9, 4)}, tuning_counts=counts_of(0.8)))
        first.publish(Offer("a", "m", learned(0.5, 2.0)))
        SnapshotFile(uri).write(first._memory.snapshot(10.0, 1e9))
        second = AcceptanceAggregator(live_for_s=1.0, snapshot=uri)
        assert second.exchange([]).acceptance() == table_of({"context": (9, 4)})
        found = second.warm_start("m").weights
        assert found is not None
        assert found.values[0] == 0.5

    def test_a_broken_one_is_loud_and_not_the_end(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        path = tmp_path / "snapshot"
        path.write_bytes(b"not gzip")
        with pytest.raises(SnapshotError, match="snapshot"):
            SnapshotFile(str(path)).read()
        assert not AcceptanceAggregator(live_for_s=1.0, snapshot=str(path)).exchange([]).replicas
        assert "begins without its snapshot" in caplog.text


def test_a_report_travels_whole_and_small() -> None:
    report = report_of("a", 7, {"context": (9, 4), "pool": (3, 1)}, tuning_counts=counts_of(0.8), num_steps=5)
    packed = pickle.dumps(report)
    found = pickle.loads(packed)
    assert found.acceptance == report.acceptance
    assert found.stats == report.stats
    assert np.allclose(found.tuning_counts.sums, report.tuning_counts.sums, rtol=1e-6)
    assert (found.incarnation, found.tuning) == (report.incarnation, report.tuning)
    assert len(packed) < 1500
