"""The equivalence matrix as JSON and as lines."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from goose_ray.bench.engine.equivalence import Cell

__all__ = ["cell_line", "equivalence_json", "is_whole"]


def is_whole(cells: Sequence[Cell]) -> bool:
    """Whether all is equal and whatever was to be preempted was."""
    return all(cell.equal and (cell.num_preemptions > 0 or not cell.setting.short_of_room) for cell in cells)


def equivalence_json(cells: Sequence[Cell]) -> dict[str, Any]:
    gaps = [cell.largest_logprob_gap for cell in cells if cell.largest_logprob_gap is not None]
    return {
        "cases": sum(cell.num_cases for cell in cells),
        "differences": sum(len(cell.differences) for cell in cells),
        "largest_logprob_gap": max(gaps, default=None),
        "equal": is_whole(cells),
        "cells": [
            {
                "sampling": cell.sampling,
                "policy": cell.setting.policy,
                "concurrency": cell.setting.concurrency,
                "short_of_room": cell.setting.short_of_room,
                "cases": cell.num_cases,
                "differences": len(cell.differences),
                "largest_logprob_gap": cell.largest_logprob_gap,
                # of all samplings of the run together
                "preemptions": cell.num_preemptions,
                "different": [asdict(difference) for difference in cell.differences],
            }
            for cell in cells
        ],
    }


def cell_line(cell: Cell) -> str:
    setting, equal = cell.setting, cell.num_cases - len(cell.differences)
    line = (
        f"{cell.sampling:12} {setting.policy:16} {setting.concurrency:3} at a time: "
        f"{equal} of {cell.num_cases} replies equal"
    )
    if cell.largest_logprob_gap is not None:
        line += f", log-probabilities within {cell.largest_logprob_gap:.1g}"
    return f"{line}, {cell.num_preemptions} preemptions in the run" if setting.short_of_room else line
