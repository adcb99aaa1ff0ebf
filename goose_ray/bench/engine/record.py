"""Recordings of greedy replies, from which policies are replayed and calibrated without the model.

Replies come from the engine, one node a step; one more forward over prompt and reply gives the most likely tokens after
every position. Knows nothing of what a recording is used for.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from goose.tree import FloatArray, IntArray
from goose_ray.assembly import ReplicaParts, new_engine
from goose_ray.bench.prompts import Dialogue, PromptFile
from goose_ray.bench.replies import Reply, Session, greedy, hold
from goose_ray.config import EngineConfig
from goose_ray.engine.step import ModelRunner, SequenceStep, StepBatch
from goose_ray.errors import ConfigError

__all__ = ["Recorded", "RecordingRun", "successors"]

# Successors kept at each position.
_TOP = 10
_ROWS_PER_FORWARD = 512


@dataclass(frozen=True, slots=True)
class Recorded:
    """One reply that was written to `path`."""

    path: Path
    num_tokens: int
    # reply tokens that the forward over the whole text does not find the most likely: near-ties, rounded otherwise
    num_mismatches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingRun:
    """How to record. A policy in `engine` changes no token, only the time that it takes."""

    parts: ReplicaParts
    engine: EngineConfig
    chat: bool
    max_tokens: int
    concurrency: int

    def record(
        self, prompts: PromptFile, folder: Path, on_dialogue: Callable[[], object] = lambda: None
    ) -> list[Recorded]:
        """Writes one `.npz` a reply: `<file>_<id>`, in a dialogue of several requests followed by `_<turn>`.

        The arrays are those that `goose.replay.Recording` reads. A dialogue whose files are all there is left alone,
        so an interrupted run goes on where it stopped. `on_dialogue` is called for each dialogue, left alone or not.
        Raises ConfigError if two dialogues would be written to the same file.
        """
        stems = [_stem(prompts.name, dialogue) for dialogue in prompts.dialogues]
        if len(set(stems)) < len(stems):
            twice = next(stem for stem in stems if stems.count(stem) > 1)
            raise ConfigError(
                f"prompts {prompts.name}: two dialogues would be recorded as {twice!r}; give them other ids"
            )
        folder.mkdir(parents=True, exist_ok=True)
        absent = []
        for stem, dialogue in zip(stems, prompts.dialogues, strict=True):
            if all(path.is_file() for path in _paths(folder, stem, dialogue)):
                on_dialogue()
            else:
                absent.append((stem, dialogue))
        recorded: list[Recorded] = []
        for start in range(0, len(absent), 2 * self.concurrency):
            group = dict(absent[start : start + 2 * self.concurrency])
            for reply in self._replies(group):
                path = _paths(folder, reply.session_id, group[reply.session_id])[reply.turn]
                recorded.append(self._write(reply, path, prompts.name))
            for _ in group:
                on_dialogue()
        return recorded

    def _replies(self, dialogues: dict[str, Dialogue]) -> list[Reply]:
        """Of an engine of their own: it must be at rest before its runner is asked for `successors`."""
        engine = new_engine(self.parts, self.engine)
        limit = engine.max_model_len - self.max_tokens
        sessions = [
            Session(stem, Session.of_dialogue(dialogue, self.parts.tokenizer, chat=self.chat, limit=limit).next_prompt)
            for stem, dialogue in dialogues.items()
        ]
        replies: list[Reply] = []
        hold(engine, sessions, greedy(self.max_tokens), concurrency=self.concurrency, on_reply=replies.append)
        return replies

    def _write(self, reply: Reply, path: Path, benchmark: str) -> Recorded:
        prompt = np.asarray(reply.prompt.token_ids, dtype=np.int64)
        output = np.asarray(reply.token_ids, dtype=np.int64)
        top_ids, top_probs = successors(self.parts.runner, np.concatenate([prompt, output]), _TOP)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        with partial.open("wb") as file:
            np.savez_compressed(
                file,
                prompt=prompt.astype(np.int32),
                output=output.astype(np.int32),
                top_ids=top_ids.astype(np.int32),
                top_p=top_probs,
                benchmark=np.array(benchmark),
            )
        os.replace(partial, path)
        most_likely = top_ids[len(prompt) - 1 : -1, 0]
        return Recorded(path, len(output), int((most_likely != output).sum()))


def successors(runner: ModelRunner, token_ids: IntArray, k: int) -> tuple[IntArray, FloatArray]:
    """token_ids [n] -> ids [n, k] of the most likely next tokens and their probabilities, float32, most likely first.

    Overwrites the runner's first n KV slots: no engine above it may have anything running, or run again.
    """
    parts = [harvest for batch in _prefill(token_ids, k) if (harvest := runner.execute(batch).harvest) is not None]
    return np.concatenate([part.top_ids for part in parts]), np.concatenate([part.top_probs for part in parts])


def _prefill(token_ids: IntArray, k: int) -> Iterator[StepBatch]:
    """One text in chunks, slot and position the same."""
    for start in range(0, len(token_ids), _ROWS_PER_FORWARD):
        chunk = np.asarray(token_ids[start : start + _ROWS_PER_FORWARD], dtype=np.int64)
        places = np.arange(start, start + len(chunk))
        sequence = SequenceStep(
            request_id="recording",
            row_start=0,
            row_end=len(chunk),
            num_chain=len(chunk),
            context_slots=np.arange(start),
            tree=None,
            sampling=greedy(1),
            output_position=0,
            harvest_chain=True,
        )
        yield StepBatch(
            step_id=start,
            token_ids=chunk,
            positions=places,
            slots=places,
            parents=np.arange(len(chunk)) - 1,
            sequences=(sequence,),
            harvest_k=k,
        )


def _stem(name: str, dialogue: Dialogue) -> str:
    return re.sub(r"[^\w.-]", "_", f"{name}_{dialogue.dialogue_id}")


def _paths(folder: Path, stem: str, dialogue: Dialogue) -> Sequence[Path]:
    """One a request."""
    if dialogue.num_requests == 1:
        return [folder / f"{stem}.npz"]
    return [folder / f"{stem}_{turn}.npz" for turn in range(dialogue.num_requests)]
