"""What the trace shows of a step."""

import pytest
from engine_helpers import ScriptedSpeculator, make_engine, make_request, run
from fakes import FakeRunner, looping_model

from goose_ray.engine.loop import EngineLoop
from goose_ray.engine.step import StepBatch
from goose_ray.telemetry.replica_telemetry import ReplicaTelemetry
from goose_ray.telemetry.report import Incarnation


def test_the_trace_keeps_the_last_256_steps() -> None:
    model = looping_model()
    engine = make_engine(
        model, ScriptedSpeculator(model, length=0), runner=FakeRunner(model, num_slots=600, max_model_len=600)
    )
    run(engine, make_request(max_tokens=300))
    assert [record.step_id for record in engine.trace.last()] == list(range(44, 300))
    assert [record.step_id for record in engine.trace.last(2)] == [298, 299]
    assert engine.trace.last(0) == ()


def test_steps_are_logged_where_wanted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "goose_ray"):
        run(make_engine(), make_request("quiet", max_tokens=5))
        assert not caplog.records
        run(make_engine(step_log=True), make_request("loud", (1, 2, 3), max_tokens=5))
    assert "step 0: 7 rows [loud: 2p+5t -> 5]" in caplog.text


def test_a_step_mixes_trees_and_a_prefill_chunk_without_padding() -> None:
    batches: list[StepBatch] = []
    model = looping_model()
    engine = make_engine(model, runner=FakeRunner(model, on_step=batches.append), max_batch_rows=32)
    for name in "abc":
        engine.add_request(make_request(name, (1, 2), max_tokens=40))
    engine.step()
    engine.add_request(make_request("d", range(1, 50), max_tokens=4))
    engine.step()
    batch = batches[-1]
    assert [step.request_id for step in batch.sequences] == ["a", "b", "c", "d"]
    assert [step.tree is not None for step in batch.sequences] == [True, True, True, False]
    assert all(step.tree.num_nodes > 1 for step in batch.sequences if step.tree is not None)
    assert batch.num_rows == sum(step.row_end - step.row_start for step in batch.sequences) <= 32
    record = engine.trace.last(1)[0]
    assert record.rows == batch.num_rows
    assert [(part.request_id, part.tree_nodes > 0) for part in record.sequences][-1] == ("d", False)


def test_trees_of_the_last_steps_are_kept_without_their_tokens() -> None:
    engine = make_engine()
    run(engine, make_request(max_tokens=30))
    trees = engine.tree_trace.last()
    steps = {record.step_id: record.sequences[0] for record in engine.trace.last()}
    assert trees
    for tree in trees:
        step = steps[tree.step_id]
        assert (len(tree.parents), len(tree.accepted)) == (step.tree_nodes, step.accepted)
        assert tree.token_ids is None
    # every step of the one request had one
    assert engine.stats().num_trees == len(steps)


@pytest.mark.parametrize("trace_tokens", [False, True])
def test_a_replica_tells_texts_of_trees_only_where_the_configuration_has_it(trace_tokens: bool) -> None:
    engine = make_engine(trace_tokens=trace_tokens)
    run(engine, make_request(max_tokens=20))
    telemetry = ReplicaTelemetry(EngineLoop(engine), Incarnation("r1"), model="m")
    live = telemetry.live(since=0.0)
    assert (live.replica_id, len(live.samples)) == ("r1", 1)
    assert live.samples[0].tokens == 20
    if not trace_tokens:
        assert live.texts is None
        return
    assert live.texts is not None
    assert [len(texts) for texts in live.texts] == [len(tree.parents) for tree in live.trees]
    assert all(text for texts in live.texts for text in texts)
