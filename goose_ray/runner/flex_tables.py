"""What FlexAttention's masks are read from, as integer tables of one shape, on the host. Plain numpy.

Places are numbered tile by tile: place p is row p % tile_rows of tile p // tile_rows. Padded places belong to no
sequence's rows and see nothing; padded rows write to the scratch slot, which nobody sees.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from goose.tree import BoolArray
from goose_ray.engine.step import SequenceStep, StepBatch
from goose_ray.runner.visibility import row_visibility

__all__ = ["BLOCK_SLOTS", "FlexShape", "FlexTables", "shape_of"]

# Slots that the kernel reads or leaves together.
BLOCK_SLOTS = 128
# The fewest rows that a tensor core multiplies, for trees; more for prefill, which else would read its keys often.
_TREE_ROWS, _PREFILL_ROWS = 16, 128
# Rows of a sequence, on average, from which the larger tile pays.
_LONG = 64
_WORD = 32

_Words = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class FlexShape:
    """Sizes of all tables; one is compiled, and recorded, for each that occurs, so there must be few."""

    num_rows: int
    num_tiles: int
    tile_rows: int


def shape_of(batch: StepBatch) -> FlexShape:
    """The smallest shape that holds the batch; sizes are powers of two."""
    counts = [sequence.row_end - sequence.row_start for sequence in batch.sequences]
    tile_rows = _PREFILL_ROWS if batch.num_rows >= _LONG * len(counts) else _TREE_ROWS
    num_tiles = sum(-(-count // tile_rows) for count in counts)
    return FlexShape(_power_of_two(batch.num_rows), _power_of_two(num_tiles), tile_rows)


class FlexTables:
    """Filled anew for every step, in place."""

    def __init__(self, shape: FlexShape, *, num_slots: int, scratch_slot: int) -> None:
        self.shape = shape
        self.num_blocks = -(-(scratch_slot + 1) // BLOCK_SLOTS)
        self._scratch_slot = scratch_slot
        self._sequences: tuple[SequenceStep, ...] = ()
        self._first_positions: list[int] = []
        # tiles of each sequence: first and one past the last
        self._tiles: list[tuple[int, int]] = []
        num_places = shape.num_tiles * shape.tile_rows
        num_slots = max(num_slots, scratch_slot + 1)
        # [num_rows] int64: where a row's key and value are written
        self.slots = np.full(shape.num_rows, scratch_slot)
        # [num_rows] int64: the place of each row
        self.places = np.zeros(shape.num_rows, dtype=np.int64)
        # [num_places] int64: the row at each place
        self.rows = np.zeros(num_places, dtype=np.int64)
        # [num_places] int32: number of the sequence, position, its sequence's first row and number of rows
        self.sequence = np.zeros(num_places, dtype=np.int32)
        self.position = np.zeros(num_places, dtype=np.int32)
        self.first_row = np.zeros(num_places, dtype=np.int32)
        self.num_rows = np.zeros(num_places, dtype=np.int32)
        # [num_places, words]: bit i is set if the i-th row of the sequence is the row itself or an ancestor of it
        self.ancestors = np.zeros((num_places, -(-shape.num_rows // _WORD)), dtype=np.int32)
        # [num_slots, words]: bit i is set if the slot is in the context of sequence i
        self.owners = np.zeros((num_slots, -(-shape.num_tiles // _WORD)), dtype=np.int32)
        # [num_slots]: the row that writes the slot in this step, -1: none
        self.slot_row = np.full(num_slots, -1, dtype=np.int32)
        # [num_slots]: position of the slot's token
        self.slot_position = np.zeros(num_slots, dtype=np.int32)

    def all(self) -> Iterator[tuple[str, NDArray[np.integer]]]:
        for name in (
            "slots",
            "places",
            "rows",
            "sequence",
            "position",
            "first_row",
            "num_rows",
            "ancestors",
            "owners",
            "slot_row",
            "slot_position",
        ):
            yield name, getattr(self, name)

    def fill(self, batch: StepBatch) -> None:
        """Raises ValueError if a slot is shared by sequences at different positions, which no prefix ever is."""
        self._clear()
        self._sequences = batch.sequences
        num_rows = batch.num_rows
        self.slots[:num_rows] = batch.slots
        self.slot_row[batch.slots] = np.arange(num_rows)
        self.slot_position[batch.slots] = batch.positions
        tile, tile_rows = 0, self.shape.tile_rows
        for number, sequence in enumerate(batch.sequences):
            start, count = sequence.row_start, sequence.row_end - sequence.row_start
            self._share(number, sequence)
            first = tile * tile_rows
            places = slice(first, first + count)
            self.rows[places] = np.arange(start, start + count)
            self.places[start : start + count] = np.arange(first, first + count)
            self.position[places] = batch.positions[start : start + count]
            parents = np.maximum(batch.parents[start : start + count] - start, -1)
            words = _packed(row_visibility(parents, sequence.num_chain))
            self.ancestors[places, : words.shape[1]] = words
            self.sequence[places] = number
            self.first_row[places] = start
            self.num_rows[places] = count
            self._first_positions.append(int(batch.positions[start]))
            tiles = -(-count // tile_rows)
            self._tiles.append((tile, tile + tiles))
            tile += tiles

    def blocks(self, window: int | None) -> tuple[_Words, _Words]:
        """counts [num_tiles] and blocks [num_tiles, num_blocks]: which blocks of the pool each tile must read, the
        first `counts` entries ascending.
        """
        seen = np.zeros((self.shape.num_tiles, self.num_blocks), dtype=np.bool_)
        for sequence, first_position, (start, end) in zip(
            self._sequences, self._first_positions, self._tiles, strict=True
        ):
            context = sequence.context_slots
            if window is not None:
                # Nothing below the first row's window is seen by any row.
                context = context[max(0, first_position - window + 1) :]
            own = self.slots[sequence.row_start : sequence.row_end]
            seen[start:end, context // BLOCK_SLOTS] = True
            seen[start:end, own // BLOCK_SLOTS] = True
        counts = seen.sum(1, dtype=np.int32)
        tiles, found = np.nonzero(seen)
        listed = np.zeros_like(seen, dtype=np.int32)
        listed[tiles, np.arange(len(tiles)) - np.repeat(np.cumsum(counts) - counts, counts)] = found
        return counts, listed

    def _clear(self) -> None:
        for table in (self.position, self.first_row, self.num_rows, self.sequence, self.ancestors, self.owners):
            table[...] = 0
        self.slots[:] = self._scratch_slot
        self.slot_row[:] = -1
        self.slot_position[:] = -1
        self.rows[:] = 0
        self.places[:] = 0
        self._first_positions, self._tiles = [], []

    def _share(self, number: int, sequence: SequenceStep) -> None:
        context = sequence.context_slots
        positions = np.arange(len(context), dtype=np.int32)
        known = self.slot_position[context]
        if ((known >= 0) & (known != positions)).any():
            raise ValueError(f"request {sequence.request_id}: a context slot has another position in another sequence")
        self.slot_position[context] = positions
        self.owners[context, number // _WORD] |= np.array(1 << number % _WORD, dtype=np.uint32).astype(np.int32)


def _packed(bits: BoolArray) -> _Words:
    """[n, m] bool -> [n, ceil(m / 32)] int32, bit j % 32 of word j // 32 being entry j"""
    num_words = -(-bits.shape[1] // _WORD)
    padded = np.zeros((len(bits), num_words * _WORD), dtype=np.bool_)
    padded[:, : bits.shape[1]] = bits
    return np.packbits(padded, axis=1, bitorder="little").view("<i4").astype(np.int32)


def _power_of_two(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()
