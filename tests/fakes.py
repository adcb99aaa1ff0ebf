"""Stand-ins for what the engine is given: a runner without a model, a tokenizer of bytes.

The fake runner is as strict as a real one is blind: it remembers what was written to every slot and refuses a step
whose slots do not hold exactly the sequence's own prefix.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from goose.tree import IntArray
from goose.verify import walk_batch
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.engine.step import HarvestRows, ModelSpec, SequenceStep, StepBatch, StepOutput, VerifiedPath

__all__ = ["EOS", "FakeRunner", "FakeTokenizer", "NextToken", "looping_model", "scripted_model"]

# (the tokens so far, at least the last four, sampling, index of the output token) -> the token
NextToken = Callable[[Sequence[int], SamplingParams, int], int]

EOS = 0
_MIX = np.uint64(0x9E3779B97F4A7C15)


def looping_model(vocab_size: int = 64, *, alphabet: int = 12, eos_every: int = 0) -> NextToken:
    """A pure function of the last two tokens, so outputs soon repeat and drafts of earlier text are often right.

    When not greedy, seed and position matter too. One in `eos_every` contexts is followed by EOS.
    """

    def next_token(history: Sequence[int], sampling: SamplingParams, position: int) -> int:
        key = (0, *history)[-2:]
        code = (key[0] * 7919 + key[1] * 104729 + 13) & 0xFFFFFFFF
        if not sampling.greedy:
            code ^= (sampling.seed * 2654435761 + (position % 5) * 40503) & 0xFFFFFFFF
        code = (code * 2246822519) & 0xFFFFFFFF
        code ^= code >> 15
        if eos_every and code % eos_every == 0:
            return EOS
        return 1 + (code >> 7) % min(alphabet, vocab_size - 1)

    return next_token


def scripted_model(output: Sequence[int]) -> NextToken:
    """Says `output` whatever the prompt, then its last token for ever."""
    return lambda _history, _sampling, position: output[min(position, len(output) - 1)]


class FakeRunner:
    """Implements `goose_ray.engine.step.ModelRunner`. `on_step` sees every batch before it runs, and may raise.

    `checked=False` leaves the bookkeeping out, for measuring the engine's own time.
    """

    def __init__(
        self,
        next_token: NextToken | None = None,
        *,
        vocab_size: int = 64,
        num_slots: int = 256,
        max_model_len: int = 256,
        eos_token_ids: tuple[int, ...] = (EOS,),
        on_step: Callable[[StepBatch], None] | None = None,
        checked: bool = True,
    ) -> None:
        self._spec = ModelSpec(
            model_id="fake",
            vocab_size=vocab_size,
            max_model_len=max_model_len,
            num_slots=num_slots,
            eos_token_ids=eos_token_ids,
        )
        self._next_token = next_token or looping_model(vocab_size)
        self._on_step = on_step
        self._checked = checked
        # what each slot holds: token, position, and a hash of the tokens up to it
        self._token = np.full(num_slots, -1, dtype=np.int64)
        self._position = np.full(num_slots, -1, dtype=np.int64)
        self._hash = np.zeros(num_slots, dtype=np.uint64)
        # request id -> committed tokens as far as this runner knows
        self._committed: dict[str, list[int]] = {}
        # request id -> tokens computed, while a prefill is not finished
        self._num_prefilled: dict[str, int] = {}
        self.num_steps = 0
        self.is_shut_down = False
        self.failure: Exception | None = None

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    def execute(self, batch: StepBatch) -> StepOutput:
        if self._on_step is not None:
            self._on_step(batch)
        if self._checked:
            self._check_rows(batch)
            for step in batch.sequences:
                self._check_sequence(batch, step)
            self._write(batch)
        paths = self._verify(batch)
        if self._checked:
            for step, path in zip(batch.sequences, paths, strict=True):
                if path is not None:
                    self._committed[step.request_id] += path.token_ids.tolist()
        self.num_steps += 1
        return StepOutput(paths=paths, harvest=self._harvest(batch), forward_s=0.001)

    def expect(self, request_id: str, token_ids: Sequence[int]) -> None:
        """A request comes with these tokens, prompt and output, of another runner."""
        self._committed[request_id] = list(token_ids)

    def forget(self, request_id: str) -> None:
        """The request was cancelled: the next one of that id is another."""
        self._num_prefilled.pop(request_id, None)

    def check_health(self) -> None:
        if self.failure is not None:
            raise self.failure

    def shutdown(self) -> None:
        self.is_shut_down = True

    def _check_rows(self, batch: StepBatch) -> None:
        for name in ("token_ids", "positions", "slots", "parents"):
            array = getattr(batch, name)
            assert array.shape == (batch.num_rows,), name
            assert array.dtype == np.int64, name
        assert len(np.unique(batch.slots)) == len(batch.slots), "a slot is written twice in one step"
        assert batch.slots.min() >= 0
        assert batch.slots.max() < self._spec.num_slots
        for step in batch.sequences:
            context = step.context_slots
            assert len(np.unique(context)) == len(context), f"{step.request_id}: a slot is read twice"
            # Sequences may share slots of what they have in common; none may write to them.
            assert not np.isin(context, batch.slots).any(), f"{step.request_id}: its context is written to"
        ends = [0, *(step.row_end for step in batch.sequences)]
        assert [step.row_start for step in batch.sequences] == ends[:-1]
        assert ends[-1] == batch.num_rows
        assert len({step.request_id for step in batch.sequences}) == len(batch.sequences)

    def _check_sequence(self, batch: StepBatch, step: SequenceStep) -> None:
        context = step.context_slots
        assert (self._position[context] == np.arange(len(context))).all(), f"{step.request_id}: positions of context"
        before = np.concatenate((np.zeros(1, np.uint64), self._hash[context]))[:-1]
        assert (self._hash[context] == _mix(before, self._token[context])).all(), f"{step.request_id}: context"
        chain = batch.token_ids[step.row_start : step.row_start + step.num_chain].tolist()
        tokens = [*self._token[context].tolist(), *chain]
        if step.output_position == 0:
            # A prompt, which no earlier request of the same id has a say in: unless this goes on where a prefill
            # stands, it is another's, or it is computed again.
            if len(context) != self._num_prefilled.pop(step.request_id, -1):
                self._committed[step.request_id] = []
            if step.tree is None:
                self._num_prefilled[step.request_id] = len(tokens)
            known = self._committed[step.request_id]
            assert tokens[: len(known)] == known[: len(tokens)], f"{step.request_id}: prompt"
            self._committed[step.request_id] = max(known, tokens, key=len)
        else:
            known = self._committed[step.request_id]
            assert tokens == known[: len(tokens)], f"{step.request_id}: committed tokens"
            assert step.tree is None or tokens == known, f"{step.request_id}: not the last token is the anchor"
        if step.tree is not None:
            # The last output token is never drafted.
            assert step.tree.depths.max() < step.sampling.max_tokens - step.output_position
            assert step.tree.token_ids[0] == chain[-1]
            assert len(tokens) + step.tree.depths.max() <= self._spec.max_model_len
            assert (batch.token_ids[step.row_start + step.num_chain : step.row_end] == step.tree.token_ids[1:]).all()

    def _write(self, batch: StepBatch) -> None:
        for step in batch.sequences:
            for row in range(step.row_start, step.row_end):
                parent = int(batch.parents[row])
                if parent >= 0:
                    assert step.row_start <= parent < row
                    above = batch.slots[parent]
                else:
                    assert row == step.row_start
                    above = step.context_slots[-1] if len(step.context_slots) else None
                position = 0 if above is None else int(self._position[above]) + 1
                assert batch.positions[row] == position
                slot = batch.slots[row]
                self._token[slot] = batch.token_ids[row]
                self._position[slot] = position
                self._hash[slot] = _mix(np.uint64(0) if above is None else self._hash[above], batch.token_ids[row])

    def _verify(self, batch: StepBatch) -> tuple[VerifiedPath | None, ...]:
        with_tree = [step for step in batch.sequences if step.tree is not None]

        def draw(sequences: IntArray, nodes: IntArray) -> IntArray:
            steps = [with_tree[i] for i in sequences.tolist()]
            return np.asarray([self._draw(batch, step, node) for step, node in zip(steps, nodes.tolist(), strict=True)])

        paths = iter(walk_batch([step.tree for step in with_tree if step.tree is not None], draw))
        return tuple(None if step.tree is None else next(paths) for step in batch.sequences)

    def _draw(self, batch: StepBatch, step: SequenceStep, node: int) -> int:
        assert step.tree is not None
        row = step.row_start + step.num_chain - 1 + node
        depth = int(step.tree.depths[node])
        return self._next_token(self._tail(batch, step, row), step.sampling, step.output_position + depth)

    def _tail(self, batch: StepBatch, step: SequenceStep, row: int) -> list[int]:
        """The last four tokens up to a row."""
        tail: list[int] = []
        while row >= 0 and len(tail) < 4:
            tail.append(int(batch.token_ids[row]))
            row = int(batch.parents[row])
        missing = 4 - len(tail)
        context = self._token[step.context_slots[-missing:]].tolist() if missing and self._checked else []
        return [*context, *tail[::-1]]

    def _harvest(self, batch: StepBatch) -> HarvestRows | None:
        if not batch.harvest_k:
            return None
        wanted = np.zeros(batch.num_rows, dtype=np.bool_)
        top = np.zeros((batch.num_rows, batch.harvest_k), dtype=np.int64)
        for step in batch.sequences:
            anchor = step.row_start + step.num_chain - 1
            wanted[step.row_start : anchor] = step.harvest_chain
            wanted[anchor] = step.harvest_chain or step.tree is not None
            wanted[anchor + 1 : step.row_end] = True
            for row in range(step.row_start, step.row_end) if self._checked else ():
                likely = self._next_token(self._tail(batch, step, row), replace(step.sampling, temperature=0.0), 0)
                top[row] = (likely + np.arange(batch.harvest_k)) % self._spec.vocab_size
        rows = np.flatnonzero(wanted)
        probs = np.tile(0.5 ** np.arange(1, batch.harvest_k + 1, dtype=np.float32), (len(rows), 1))
        return HarvestRows(rows=rows, top_ids=top[rows], top_probs=probs)


def _mix(before: np.uint64 | np.ndarray, tokens: np.int64 | np.ndarray) -> np.ndarray:
    words = np.atleast_1d(np.asarray(before, dtype=np.uint64)) * _MIX + np.atleast_1d(np.asarray(tokens, np.uint64))
    mixed: np.ndarray = (words ^ (words >> np.uint64(29))) + np.uint64(1)
    return mixed if np.ndim(tokens) else mixed[0]


class FakeTokenizer:
    """Token ids below 256 are single bytes, those above are `pieces`; `specials` have no text.

    `strips_space` takes one space off the beginning of whatever is decoded, as tokenizers with a word-start mark do.
    """

    def __init__(
        self, pieces: Sequence[str | bytes] = (), *, specials: Iterable[int] = (), strips_space: bool = False
    ) -> None:
        self._pieces = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        self._specials = frozenset(specials)
        self._strips_space = strips_space
        self.vocab_size = 256 + len(self._pieces)
        self.eos_token_ids = tuple(self._specials)
        self.chat_template = ""
        self.num_decoded = 0
        self.fails_on: int | None = None

    @property
    def definition(self) -> str:
        """Of a byte-level BPE without merges; no two pieces may be alike, and none a single byte."""
        tokens = [f"<|{token}|>" if token in self._specials else _spelled(self._bytes(token)) for token in range(256)]
        tokens += [_spelled(piece) for piece in self._pieces]
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        specials = [{"id": token, "content": tokens[token], "special": True, **flags} for token in self._specials]
        return json.dumps(
            {
                "version": "1.0",
                "added_tokens": specials,
                "pre_tokenizer": byte_level,
                "decoder": byte_level,
                "model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": []},
            }
        )

    def encode(self, text: str, *, max_tokens: int | None = None) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int], shown: frozenset[int] = frozenset()) -> str:
        if self.fails_on is not None and self.fails_on in token_ids:
            raise ValueError(f"token {self.fails_on} cannot be decoded")
        self.num_decoded += len(token_ids)
        data = b"".join(self.token_bytes(token) if token in shown else self._bytes(token) for token in token_ids)
        text = data.decode(errors="replace")
        return text[1:] if self._strips_space and text.startswith(" ") else text

    def apply_chat_template(
        self,
        messages: Sequence[object],
        *,
        tools: Sequence[object] | None = None,
        options: object = None,
        max_tokens: int | None = None,
    ) -> list[int]:
        return self.encode("\n".join(map(str, messages)), max_tokens=max_tokens)

    def special_token_id(self, name: str) -> int | None:
        return next((token for token in self._specials if self.token_bytes(token) == name.encode()), None)

    def token_bytes(self, token_id: int) -> bytes:
        return f"<{token_id}>".encode() if token_id in self._specials else self._bytes(token_id)

    def _bytes(self, token: int) -> bytes:
        if token in self._specials:
            return b""
        return bytes([token]) if token < 256 else self._pieces[token - 256]


def _spelled(data: bytes) -> str:
    """As byte-level vocabularies spell bytes: printable ones as themselves, the n-th other as the character 256 + n."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return "".join(chr(byte if byte in printable else 256 + others.index(byte)) for byte in data)
