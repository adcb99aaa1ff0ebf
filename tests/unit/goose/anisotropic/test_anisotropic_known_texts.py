"""Texts that drafting starts from: kept in a file, remembered by the drafter, shown to no salt."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import FakeRunner, FakeTokenizer, looping_model
from recording_builders import make_recording, random_recording

from goose.anisotropic.calibration_file import CalibrationFile
from goose.anisotropic.fitting import known_texts
from goose.anisotropic.known_texts import KnownTexts
from goose.anisotropic.weights import Weights
from goose.errors import InvalidSnapshotError
from goose.npz import write_arrays
from goose.policies.registry import calibrated
from goose.replay import Recording, ReplayResult, replay
from goose.speculator import Speculator
from goose_ray.assembly import ReplicaParts, new_engine
from goose_ray.config import EMBEDDED_MODEL, EngineConfig
from goose_ray.errors import ConfigError
from goose_ray.models.calibrations import SHIPPED_CALIBRATIONS, load_calibration

RECORDINGS = [random_recording(f"r{seed}", seed=seed, vocab_size=500) for seed in range(4)]


def speculator(texts: KnownTexts) -> Speculator:
    return Speculator(
        policy="anisotropic", budget=8, builders=calibrated(CalibrationFile(Weights.prior(), texts=texts))
    )


def served(recording: Recording, texts: KnownTexts) -> ReplayResult:
    return replay(recording, speculator(texts))


def test_a_known_reply_is_drafted_from_the_first_step() -> None:
    unknown = served(RECORDINGS[2], KnownTexts.none())
    known = served(RECORDINGS[2], known_texts(RECORDINGS))
    assert unknown.tau < 1.5
    assert known.tau > 3 * unknown.tau
    assert known.by_source["pool"][1] > 0


def test_rows_alone_help_where_the_text_is_another() -> None:
    # The same pairs in another order: nothing to copy, but each token's successor is known.
    chain = [7 * place % 101 for place in range(101)]
    before = make_recording("before", chain[:1], chain[1:])
    begun = make_recording("after", chain[40:42], chain[42:80])
    assert served(begun, known_texts([before])).tau > 3 * served(begun, KnownTexts.none()).tau


def test_a_request_with_a_salt_is_shown_nothing_of_them() -> None:
    texts = known_texts(RECORDINGS)
    trees = []
    for one in (texts, KnownTexts.none()):
        drafting = speculator(one)
        drafting.start_request("salted", RECORDINGS[2].prompt_ids, cache_salt="tenant")
        trees.append(drafting.propose(["salted"], max_draft_depths=[8], max_nodes=8)[0])
    assert trees[0].token_ids.tolist() == trees[1].token_ids.tolist()


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    texts, path = known_texts(RECORDINGS), tmp_path / "c.npz"
    CalibrationFile(Weights.prior(), texts).save(path)
    read = CalibrationFile.load(path).texts
    for saved, loaded in zip(texts, read, strict=True):
        assert saved.num_prompt == loaded.num_prompt
        for name in ("token_ids", "top_ids", "top_probs"):
            np.testing.assert_array_equal(getattr(saved, name), getattr(loaded, name))


def without(arrays: dict[str, Any]) -> None:
    del arrays["row_ids"]


def shifted(arrays: dict[str, Any]) -> None:
    arrays["text_lengths"] = arrays["text_lengths"] + 1


def no_prompt(arrays: dict[str, Any]) -> None:
    arrays["prompt_lengths"] = arrays["prompt_lengths"] * 0


def negative(arrays: dict[str, Any]) -> None:
    arrays["row_ids"] = arrays["row_ids"] - 1000


def certain(arrays: dict[str, Any]) -> None:
    arrays["row_probs"] = arrays["row_probs"] + np.float16(2)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (without, "lacks the arrays row_ids of its texts"),
        (shifted, "do not divide text_tokens"),
        (no_prompt, "do not divide text_tokens"),
        (negative, "row_ids must be token ids"),
        (certain, "row_probs must be probabilities"),
    ],
)
def test_broken_texts_are_refused(tmp_path: Path, spoil: Any, says: str) -> None:
    path = tmp_path / "c.npz"
    arrays = {**Weights.prior().arrays(), **known_texts(RECORDINGS).arrays()}
    spoil(arrays)
    write_arrays(path, arrays)
    with pytest.raises(InvalidSnapshotError, match=says) as raised:
        CalibrationFile.load(path)
    assert str(path) in str(raised.value)


def test_texts_of_a_larger_vocabulary_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.npz"
    CalibrationFile(Weights.prior(), known_texts(RECORDINGS)).save(path)
    runner = FakeRunner(looping_model(256), vocab_size=256, num_slots=2048, max_model_len=512)
    parts = ReplicaParts(Path("fake"), FakeTokenizer(), runner)
    with pytest.raises(ConfigError, match=r"engine\.calibration: its texts hold token 14\d\d, but .* has 256 tokens"):
        new_engine(parts, EngineConfig(calibration=path))


def test_the_embedded_model_has_a_calibration_of_its_own() -> None:
    shipped = load_calibration("auto", EMBEDDED_MODEL)
    assert shipped is not None
    assert len(shipped.texts) > 100
    assert SHIPPED_CALIBRATIONS[EMBEDDED_MODEL].stat().st_size < 2 << 20
    assert load_calibration("none", EMBEDDED_MODEL) is None
    assert load_calibration("auto", "someone/else") is None
