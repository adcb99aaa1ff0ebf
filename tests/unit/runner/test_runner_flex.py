"""FlexAttention's tables and masks, against SDPA; forwards that are recorded, padded, and run again."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_helpers import run
from fakes import FakeTokenizer
from runner_steps import Part, SlotDealer, build_step
from tiny_models import VOCAB_SIZE, WINDOW, tiny_model

from goose.speculator import Speculator
from goose_ray.bench.device.attention_cases import CASES, AttentionCase, largest_error, mixed_step
from goose_ray.config import EngineConfig
from goose_ray.engine.engine import Engine
from goose_ray.engine.request import GenerationRequest
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.engine.step import StepBatch
from goose_ray.runner.flex import FlexBackend, fused
from goose_ray.runner.flex_tables import BLOCK_SLOTS, FlexTables, shape_of
from goose_ray.runner.forward import ModelForward, inspect_model
from goose_ray.runner.graphs import RecordedForwards, call_again
from goose_ray.runner.local import LocalRunner
from goose_ray.runner.visibility import row_visibility

CPU = torch.device("cpu")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_flex_computes_what_sdpa_does(case: AttentionCase) -> None:
    assert largest_error(case, FlexBackend(CPU), dtype=torch.float32, device=CPU) < 2e-6


@pytest.mark.skipif("GOOSE_ARCHITECTURES" not in os.environ, reason="`make families`: compiles for 15 s")
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's compiler needs g++")
def test_the_compiled_kernel_does_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """FlexAttention itself, fused for the CPU: it reads the block lists and masks that the one for CUDA reads."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    backend = FlexBackend(CPU, kernel=fused())
    with torch.inference_mode():
        assert largest_error(CASES[-1], backend, dtype=torch.float32, device=CPU) < 2e-6


def test_tables_say_who_sees_what() -> None:
    """Every slot that a row sees, by the definition: context, ancestors, itself, in the window. Blocks hold them."""
    batch = mixed_step(np.random.default_rng(1), num_slots=500)
    tables = FlexTables(shape_of(batch), num_slots=500, scratch_slot=500)
    for _ in range(2):
        # Filled twice: nothing of a step stays for the next.
        tables.fill(mixed_step(np.random.default_rng(2), num_slots=500))
        tables.fill(batch)
    for window in (None, WINDOW):
        counts, blocks = tables.blocks(window)
        for number, sequence in enumerate(batch.sequences):
            rows = np.arange(sequence.row_start, sequence.row_end)
            own = row_visibility(np.maximum(batch.parents[rows] - rows[0], -1), sequence.num_chain)
            for row in rows:
                nearest = -1 if window is None else batch.positions[row] - window
                expected = {int(slot) for slot in sequence.context_slots[max(0, nearest + 1) :]}
                expected |= {int(batch.slots[i]) for i in rows[own[row - rows[0]]] if batch.positions[i] > nearest}
                place = tables.places[row]
                assert tables.sequence[place] == number
                assert _seen(tables, int(place), window) == expected
                tile = place // tables.shape.tile_rows
                listed = blocks[tile, : counts[tile]].tolist()
                assert listed == sorted(set(listed))
                assert {slot // BLOCK_SLOTS for slot in expected} <= set(listed)


def _seen(tables: FlexTables, place: int, window: int | None) -> set[int]:
    """The mask, written out for one place."""
    seen = set()
    for slot in range(len(tables.slot_row)):
        local = tables.slot_row[slot] - tables.first_row[place]
        if tables.slot_row[slot] >= 0 and 0 <= local < tables.num_rows[place]:
            visible = bool(tables.ancestors[place, local // 32] >> (local % 32) & 1)
        else:
            sequence = tables.sequence[place]
            visible = bool(tables.owners[slot, sequence // 32] >> (sequence % 32) & 1)
        if visible and (window is None or tables.slot_position[slot] > tables.position[place] - window):
            seen.add(slot)
    return seen


def test_more_sequences_and_rows_than_bits_in_a_word() -> None:
    dealer = SlotDealer(900, seed=4)
    parts = [Part(chain=[1], context_slots=dealer.deal(3).tolist(), drafts=([2, 3], [0, 0])) for _ in range(70)]
    parts.append(Part(chain=list(range(100))))
    batch = build_step(parts, dealer.deal(310))
    shape = shape_of(batch)
    assert (shape.num_rows, shape.num_tiles) == (512, 128)
    tables = FlexTables(shape, num_slots=900, scratch_slot=900)
    tables.fill(batch)
    for number in (0, 31, 32, 63, 69):
        row = batch.sequences[number].row_start + 2
        expected = {*batch.sequences[number].context_slots.tolist(), *batch.slots[[row, row - 2]].tolist()}
        assert _seen(tables, int(tables.places[row]), None) == expected
    assert len(_seen(tables, int(tables.places[-1 - (512 - 310)]), None)) == 100


def test_a_slot_shared_at_two_positions_is_refused() -> None:
    parts = [Part(chain=[1], context_slots=[3, 4]), Part(chain=[1], context_slots=[4])]
    batch = build_step(parts, np.array([8, 9]))
    with pytest.raises(ValueError, match="position"):
        FlexTables(shape_of(batch), num_slots=16, scratch_slot=16).fill(batch)


def _requests() -> list[GenerationRequest]:
    draw = np.random.default_rng(5)
    common = draw.integers(0, VOCAB_SIZE, 70).tolist()
    return [
        GenerationRequest(
            request_id=str(number),
            prompt_token_ids=(*common[: 70 * (number % 2)], *draw.integers(0, VOCAB_SIZE, 3 + 4 * number).tolist()),
            sampling=SamplingParams(max_tokens=12, temperature=0.9 * (number % 3 == 2), seed=number),
        )
        for number in range(5)
    ]


def _replies(runner: LocalRunner, policy: str) -> list[list[int]]:
    config = EngineConfig(policy=policy, budget=12, max_batch_rows=40)
    engine = Engine(runner, Speculator(policy=policy, budget=12, harvest_k=4), FakeTokenizer(), config)
    return [reply.token_ids for reply in run(engine, *_requests()).values()]


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3"])
def test_replies_are_those_of_sdpa(family: str) -> None:
    """Through the engine: trees, chunks, shared prefixes; with forwards as they come, and recorded ones."""
    plain = _replies(LocalRunner(tiny_model(family), model_id=family, num_slots=400), "autoregressive")
    flex = LocalRunner(tiny_model(family), model_id=family, num_slots=400, backend=FlexBackend(CPU))
    assert _replies(flex, "goose") == plain


class Counting:
    """A recorder that notes how often each recording was run."""

    def __init__(self) -> None:
        self.runs: list[int] = []

    def __call__(self, forward: Any) -> Any:
        number = len(self.runs)
        self.runs.append(0)

        def again() -> torch.Tensor:
            self.runs[number] += 1
            return call_again(forward)()

        return again


def _forward(recorder: Any) -> ModelForward:
    model = tiny_model("mistral")
    spec = inspect_model(model, model_id="tiny", num_slots=128)
    return ModelForward(model, spec=spec, backend=FlexBackend(CPU), recorder=recorder)


def _steps() -> list[StepBatch]:
    """A prompt, then trees of several sizes below it, of which some have the same shape."""
    draw = np.random.default_rng(0)
    prompt = draw.integers(0, VOCAB_SIZE, 20).tolist()
    slots = np.random.default_rng(1).permutation(128)
    steps = [build_step([Part(chain=prompt[:-1])], slots[:19])]
    for count in (5, 7, 2, 6, 5):
        drafts = (draw.integers(0, VOCAB_SIZE, count).tolist(), [0, *draw.integers(0, 2, count - 1).tolist()])
        part = Part(chain=prompt[-1:], context_slots=slots[:19].tolist(), drafts=drafts)
        steps.append(build_step([part], slots[40 : 41 + count]))
    return steps


@torch.inference_mode()
def test_recorded_forwards_are_exact_and_their_padding_touches_nothing() -> None:
    recorder = Counting()
    recorded, eager = _forward(recorder), _forward(None)
    pool = recorded._pool
    assert pool is not None
    for step in _steps():
        before = [keys.clone() for keys in (*pool.keys, *pool.values)]
        hidden = recorded.hidden_states(step)
        torch.testing.assert_close(hidden, eager.hidden_states(step), rtol=0, atol=1e-5)
        others = np.setdiff1d(np.arange(128), step.slots)
        for old, new in zip(before, (*pool.keys, *pool.values), strict=True):
            torch.testing.assert_close(new[:, others], old[:, others], rtol=0, atol=0)
            assert not torch.equal(new[:, step.slots], old[:, step.slots])
    # 19 rows; 6, 8, 7 and 6 rows in one shape; 3 rows.
    assert recorder.runs == [1, 4, 1]


def test_large_forwards_are_not_recorded() -> None:
    recorder = Counting()
    forward = _forward(recorder)
    assert forward._pool is not None
    few = RecordedForwards(forward._body, FlexBackend(CPU), forward._pool, recorder, max_rows=8)
    prompt, *trees = _steps()
    with torch.inference_mode():
        assert few(prompt) is None
        hidden = few(trees[0])
    assert hidden is not None
    assert len(hidden) == trees[0].num_rows
    assert [shape.num_rows for shape in few.shapes] == [8]


def test_a_model_that_cannot_be_recorded_runs_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    def refusing(forward: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    recorded, eager = _forward(refusing), _forward(None)
    with torch.inference_mode():
        for step in _steps():
            torch.testing.assert_close(recorded.hidden_states(step), eager.hidden_states(step), rtol=0, atol=1e-5)
    warned = [record.message for record in caplog.records if record.name == "goose_ray.runner.graphs"]
    assert len(warned) == 1
    assert "not permitted" in warned[0]
