"""Steps as bytes: what a rank decodes is what the engine meant, with everything that a step may carry."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from runner_steps import Part, build_step

from goose_ray.engine.logit_rules import LogitRules
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.engine.step import SequenceStep, StepBatch
from goose_ray.runner.step_codec import StepDecoder, StepEncoder

SAMPLED = SamplingParams(temperature=0.7, seed=2**40, top_p=0.9)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, LogitRules):
        return all(same(getattr(one, name), getattr(other, name)) for name in LogitRules.__slots__)
    return bool(one == other)


def assert_same(batch: StepBatch, decoded: StepBatch) -> None:
    for field in fields(StepBatch):
        if field.name != "sequences":
            assert same(getattr(batch, field.name), getattr(decoded, field.name)), field.name
    assert len(batch.sequences) == len(decoded.sequences)
    for step, found in zip(batch.sequences, decoded.sequences, strict=True):
        for field in fields(SequenceStep):
            if field.name == "tree":
                assert (step.tree is None) == (found.tree is None)
            else:
                assert same(getattr(step, field.name), getattr(found, field.name)), field.name
        if step.tree is not None and found.tree is not None:
            # who drafted a node, and how sure of it, stays with the engine
            for name in ("token_ids", "parents", "depths"):
                assert same(getattr(step.tree, name), getattr(found.tree, name)), name


def a_batch(*, request_ids: tuple[str, ...] = ("a", "b", "c")) -> StepBatch:
    first, second, third = request_ids
    parts = [
        Part(chain=[5, 6, 7], harvest_chain=True, request_id=first),
        Part(chain=[8], context_slots=[9, 4, 30], drafts=([1, 2, 3], [0, 0, 1]), sampling=SAMPLED, request_id=second),
        Part(chain=[2, 3], context_slots=[40], drafts=([], []), output_position=5, request_id=third),
    ]
    return build_step(parts, np.array([11, 3, 7, 0, 1, 2, 20, 21, 22]), harvest_k=4)


def test_a_step_comes_through_whole() -> None:
    batch = a_batch()
    assert_same(batch, StepDecoder().decode(StepEncoder().encode(batch)))


def test_what_is_rare_comes_through_as_well() -> None:
    sampling = SamplingParams(logit_bias=((3, 1.5),), repetition_penalty=1.2, logprobs=2)
    rules = LogitRules(sampling, prompt_ids=[1, 2, 2], end_ids=[0], vocab_size=64)
    step = SequenceStep(
        request_id="r",
        row_start=0,
        row_end=2,
        num_chain=2,
        context_slots=np.empty(0, dtype=np.int64),
        tree=None,
        sampling=sampling,
        output_position=0,
        harvest_chain=False,
        logit_rules=rules,
        scored_ids=np.array([4, -1]),
        token_masks=np.array([[7, 0]], dtype=np.int32),
    )
    plain = build_step([Part(chain=[5, 6])], np.arange(2))
    batch = StepBatch(**{f.name: getattr(plain, f.name) for f in fields(StepBatch)} | {"sequences": (step,)})
    assert_same(batch, StepDecoder().decode(StepEncoder().encode(batch)))


def test_sampling_is_sent_once_a_request_and_again_when_it_changes() -> None:
    encoder, decoder = StepEncoder(), StepDecoder()
    first = encoder.encode(a_batch())
    decoder.decode(first)
    second = encoder.encode(a_batch())
    assert len(second) < len(first)
    assert_same(a_batch(), decoder.decode(second))
    # a request id that is used again
    other = a_batch(request_ids=("c", "a", "b"))
    assert_same(other, decoder.decode(encoder.encode(other)))


def test_neither_end_remembers_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("goose_ray.runner.step_codec._MOST_KNOWN", 6)
    encoder, decoder = StepEncoder(), StepDecoder()
    for number in range(12):
        batch = a_batch(request_ids=(f"a{number}", f"b{number}", "always"))
        assert_same(batch, decoder.decode(encoder.encode(batch)))
        assert len(encoder._known) <= 9
        assert len(decoder._known) <= 9
