"""What the trace shows of a step."""

import pytest
from engine_helpers import ScriptedSpeculator, make_engine, make_request, run
from fakes import FakeRunner, looping_model

from goose_ray.engine.step import StepBatch


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
