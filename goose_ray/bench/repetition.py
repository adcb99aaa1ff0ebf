"""How much of a reply is copied from what stands before it.

A small greedy model loops, and a loop flatters every method that copies: figures of *natural* replies stand apart from
those of *repetitive* ones.
"""

from collections.abc import Sequence

__all__ = ["copy_share", "is_repetitive"]

# A reply with at least this share of its 4-grams copied counts as repetitive.
_REPETITIVE_SHARE = 0.5
_GRAM = 4


def copy_share(prompt_ids: Sequence[int], token_ids: Sequence[int]) -> float:
    """The share of the reply's 4-grams that stand earlier in prompt and reply; 0 for a reply of fewer tokens."""
    ids = [*prompt_ids, *token_ids]
    grams = [tuple(ids[i : i + _GRAM]) for i in range(len(ids) - _GRAM + 1)]
    seen: set[tuple[int, ...]] = set()
    num_copied = 0
    for place, gram in enumerate(grams):
        num_copied += place >= len(prompt_ids) and gram in seen
        seen.add(gram)
    num_own = len(token_ids) - _GRAM + 1
    return num_copied / num_own if num_own > 0 else 0.0


def is_repetitive(prompt_ids: Sequence[int], token_ids: Sequence[int]) -> bool:
    return copy_share(prompt_ids, token_ids) >= _REPETITIVE_SHARE
