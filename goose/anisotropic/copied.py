"""The features of a candidate that come from matches: how long they are, how many, and how right they have been.

The table of features stands in `goose.anisotropic.features`.
"""

from goose.anisotropic import features as table
from goose.jit import jit

__all__ = ["copied_features", "support_class"]


@jit
def copied_features(
    own: int,
    own_votes: int,
    own_followed: int,
    pooled: int,
    pool_votes: int,
    pool_followed: int,
    is_latest: bool,
    longest_own: int,
    all_own_votes: int,
    all_pool_votes: int,
    at_streak: int,
    at_trend: int,
) -> tuple[int, int, int, int, int, int, int, int]:
    """Weights of OWN, OWN_ROW, POOL, POOL_ROW, RECENT, SUPPORT, STREAK and TREND.

    `own` and `pooled` are the longest matches that continue with the candidate, `votes` the long ones that do (of
    `all_...`), `followed` how likely the target found it there; `at_...` the first weights of the node's streak and
    trend.
    """
    return (
        table.AT_OWN + table.length_bucket(own) * table.NUM_SHARES + table.share_bucket(own_votes, all_own_votes),
        table.AT_OWN_ROW + table.span_bucket(own) * table.NUM_PROBABILITIES + own_followed,
        table.AT_POOL + table.length_bucket(pooled) * table.NUM_SHARES + table.share_bucket(pool_votes, all_pool_votes),
        table.AT_POOL_ROW + table.span_bucket(pooled) * table.NUM_PROBABILITIES + pool_followed,
        table.AT_RECENT + table.span_bucket(own) * 2 + (1 if is_latest else 0),
        table.AT_SUPPORT + support_class(own, pooled),
        at_streak + _streak_length(own, longest_own),
        at_trend + _trend_length(own, longest_own),
    )


@jit
def support_class(own: int, pooled: int) -> int:
    if own >= 8:
        return 0
    return 1 if own >= 2 else (2 if own == 1 else (3 if pooled >= 3 else 4))


@jit
def _streak_length(own: int, longest: int) -> int:
    """0: not copied; 1: copied, but not by the longest match; else by the longest, in four lengths."""
    if own == 0 or own < longest:
        return min(own, 1)
    return 2 if own < 3 else (3 if own < 8 else (4 if own < 32 else 5))


@jit
def _trend_length(own: int, longest: int) -> int:
    if own < longest:
        return 6 if own > 0 else 0
    return 0 if own == 0 else (1 if own == 1 else (2 if own < 4 else (3 if own < 8 else (4 if own < 16 else 5))))
