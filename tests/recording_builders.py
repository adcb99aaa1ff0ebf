"""Recordings small enough to count by hand, for tests of what is made of recordings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from goose.replay import Recording

__all__ = ["looping_recording", "make_recording", "random_recording", "save_recording"]


def make_recording(name: str, prompt: Sequence[int], output: Sequence[int], benchmark: str | None = None) -> Recording:
    """The target is certain of its reply."""
    tokens = np.array([*prompt, *output], dtype=np.int64)
    following = np.append(tokens[1:], 0)
    return Recording(
        name=name,
        prompt_ids=tokens[: len(prompt)],
        output_ids=tokens[len(prompt) :],
        top_ids=np.stack([following, following + 1000], axis=1),
        top_probs=np.tile(np.array([0.9, 0.05], dtype=np.float32), (len(tokens), 1)),
        benchmark=benchmark,
    )


def looping_recording(name: str, *, period: int = 7, num_output: int = 40) -> Recording:
    """A reply that says the same `period` tokens over and over."""
    tokens = [10 + place % period for place in range(5 + num_output)]
    return make_recording(name, tokens[:5], tokens[5:])


def random_recording(name: str, *, seed: int, num_output: int = 40, vocab_size: int = 30) -> Recording:
    """Single tokens recur, 4-grams hardly ever."""
    rng = np.random.default_rng(seed)
    return make_recording(
        name, rng.integers(0, vocab_size, 20).tolist(), rng.integers(0, vocab_size, num_output).tolist()
    )


def save_recording(recording: Recording, folder: Path) -> Path:
    """As `goose record` writes them."""
    path = folder / f"{recording.name}.npz"
    arrays: dict[str, Any] = {
        "prompt": recording.prompt_ids.astype(np.int32),
        "output": recording.output_ids.astype(np.int32),
        "top_ids": recording.top_ids.astype(np.int32),
        "top_p": recording.top_probs,
    }
    if recording.benchmark is not None:
        arrays["benchmark"] = np.array(recording.benchmark)
    np.savez_compressed(path, **arrays)
    return path
