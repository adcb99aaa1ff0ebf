"""`goose record`: what is on disk is the reply and the model's own successors, and an interrupted run goes on."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fakes import EOS, FakeRunner, FakeTokenizer, looping_model

from goose.replay import Recording
from goose_ray.assembly import ReplicaParts
from goose_ray.bench.engine.record import RecordingRun, successors
from goose_ray.bench.prompts import CALIBRATION_PROMPTS, Dialogue, PromptFile, read_prompts
from goose_ray.config import EngineConfig
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.engine.step import StepBatch, StepOutput
from goose_ray.errors import ConfigError

VOCAB_SIZE = 256
PROMPTS = PromptFile("own", tuple(Dialogue(f"d/{i}", prompt=f"prompt {i}") for i in range(5)))


def make_run(runner: FakeRunner | None = None) -> RecordingRun:
    runner = runner or FakeRunner(looping_model(VOCAB_SIZE), vocab_size=VOCAB_SIZE, num_slots=4096, max_model_len=2048)
    return RecordingRun(
        parts=ReplicaParts(Path("fake"), FakeTokenizer(specials=(EOS,)), runner),
        engine=EngineConfig(policy="autoregressive", budget=1, max_running_requests=2),
        chat=False,
        max_tokens=30,
        concurrency=2,
    )


def next_token(tokens: list[int]) -> int:
    return looping_model(VOCAB_SIZE)(tokens, SamplingParams(temperature=0.0), 0)


def test_every_reply_is_on_disk_with_the_models_successors(tmp_path: Path) -> None:
    recorded = make_run().record(PROMPTS, tmp_path)
    assert sorted(one.path.name for one in recorded) == [f"own_d_{i}.npz" for i in range(5)]
    assert sorted(tmp_path.iterdir()) == sorted(one.path for one in recorded), "nothing half-written stays"
    assert {(one.num_tokens, one.num_mismatches) for one in recorded} == {(30, 0)}
    recording = Recording.load(tmp_path / "own_d_3.npz")
    assert recording.benchmark == "own"
    assert recording.prompt_ids.tolist() == list(b"prompt 3")
    tokens = [*recording.prompt_ids.tolist(), *recording.output_ids.tolist()]
    assert recording.top_ids.shape == recording.top_probs.shape == (len(tokens), 10)
    expected = [next_token(tokens[: place + 1]) for place in range(len(tokens))]
    assert recording.top_ids[:, 0].tolist() == expected
    assert expected[len(recording.prompt_ids) - 1 : -1] == recording.output_ids.tolist()


def test_a_text_of_several_forwards_is_one_text() -> None:
    tokens = np.arange(1, 1301) % 100 + 1
    runner = FakeRunner(looping_model(VOCAB_SIZE), vocab_size=VOCAB_SIZE, num_slots=2048, max_model_len=2048)
    ids, probs = successors(runner, tokens, 4)
    assert runner.num_steps == 3
    assert ids.shape == probs.shape == (1300, 4)
    assert ids[:, 0].tolist() == [next_token(tokens[: place + 1].tolist()) for place in range(1300)]


class _TemplateTokenizer(FakeTokenizer):
    """Contents, one behind the other."""

    def apply_chat_template(
        self,
        messages: Sequence[object],
        *,
        tools: Sequence[object] | None = None,
        options: object = None,
        max_tokens: int | None = None,
    ) -> list[int]:
        return self.encode("".join(message["content"] for message in messages if isinstance(message, dict)))


def test_turns_are_files_of_their_own(tmp_path: Path) -> None:
    recorded_session = PromptFile(
        "s", (Dialogue("m", messages=({"role": "user", "content": "a"},)), Dialogue("p", prompt="text"))
    )
    run = make_run()
    run = replace(run, parts=replace(run.parts, tokenizer=_TemplateTokenizer(specials=(EOS,))))
    run.record(recorded_session, tmp_path)
    run.record(PromptFile("t", (Dialogue("x", turns=("first", "second")),)), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s_m.npz", "s_p.npz", "t_x_0.npz", "t_x_1.npz"]
    first, second = (Recording.load(tmp_path / f"t_x_{turn}.npz") for turn in (0, 1))
    reply = run.parts.tokenizer.decode(first.output_ids.tolist())
    assert second.prompt_ids.tolist() == list(f"first{reply}second".encode())


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    run = make_run()
    run.record(PROMPTS, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "own_d_2.npz").unlink()
    seen: list[int] = []
    again = make_run().record(PROMPTS, tmp_path, lambda: seen.append(1))
    assert [one.path.name for one in again] == ["own_d_2.npz"]
    assert len(seen) == 5, "dialogues left alone are told of too"
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert make_run().record(PROMPTS, tmp_path) == []


class _WrongTwice(FakeRunner):
    """Its long forwards do not agree with its steps at two positions."""

    def execute(self, batch: StepBatch) -> StepOutput:
        output = super().execute(batch)
        if batch.sequences[0].request_id == "recording" and output.harvest is not None:
            output.harvest.top_ids[[-4, -9]] += 1
        return output


def test_disagreement_is_counted(tmp_path: Path) -> None:
    runner = _WrongTwice(looping_model(VOCAB_SIZE), vocab_size=VOCAB_SIZE, num_slots=2048, max_model_len=512)
    assert [one.num_mismatches for one in make_run(runner).record(PROMPTS, tmp_path)] == [2] * 5


def test_two_dialogues_of_one_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"own_a_b.*other ids"):
        make_run().record(PromptFile("own", (Dialogue("a/b", prompt="x"), Dialogue("a b", prompt="y"))), tmp_path)


def test_our_own_prompts_are_many_of_many_kinds() -> None:
    dialogues = read_prompts(CALIBRATION_PROMPTS).dialogues
    ids = [dialogue.dialogue_id for dialogue in dialogues]
    assert len(set(ids)) == len(ids) >= 100
    assert len({name.rsplit("-", 1)[0] for name in ids}) >= 12
    assert any(dialogue.tools for dialogue in dialogues)
    assert sum(dialogue.prompt is not None for dialogue in dialogues) >= 20
    assert sum(dialogue.num_requests > 1 for dialogue in dialogues) >= 20
