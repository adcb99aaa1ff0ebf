"""The features of a candidate token: which weights of the model add up to its logit.

Every feature is a bucket number; a weight stands for one bucket of one feature group, so that a logit is a sum of
table entries (a generalised additive model) and needs no arithmetic on the features. Groups of two or three
properties hold one weight for each combination. Knows neither where the properties come from nor how weights are
learned.

| group | buckets | of a candidate |
|---|---|---|
| OWN | length x share | longest match in the request's own text that continues so; its share of the long matches |
| OWN_ROW | span x probability | how likely the target found that continuation at the matched place |
| POOL, POOL_ROW | same | the same for outputs of other requests |
| PLACE | span x probability | its probability in the target's row at the longest match |
| TRIPLE | span x probability | its probability in the last row of the last three tokens |
| PAIR | context x probability | in the last row of the last two tokens |
| TOKEN | tier x probability | in the last row of the last token |
| MERGED_PAIR | count x context x probability | in the running mean of the pair's rows |
| MERGED_TOKEN | count x tier x probability | in the running mean of the token's rows |
| USUAL | depth x probability | in the mean of all rows, asked only where the last token has no row |
| RECENT | span x 2 | whether the latest occurrence continues so |
| SEEN | distance x 3 | how long ago the token was last in the text; copied, pooled or neither |
| SUPPORT | class | own match of 8, 2 or 1 tokens, pooled match, rows alone: adapts to each request as well |
| STREAK | streak x length | how many tokens in a row the longest own match has been right |
| TREND | trend x trend x length | how often lately the longest own match, and the likeliest candidate, were right |

and of the outcome "none of the candidates":

| group | buckets | of the node |
|---|---|---|
| NONE_OWN | length x number | longest own match, number of own matches |
| NONE_ROW | probability x tier | probability that the best row leaves over |
| NONE_DEPTH, NONE_POOL | depth; length | depth in the tree; longest pooled match |
| NONE_TREND | trend x trend | as TREND |
"""

from goose.jit import jit

__all__ = [
    "NUM_CANDIDATE_GROUPS",
    "NUM_NONE_GROUPS",
    "NUM_SUPPORT_CLASSES",
    "NUM_WEIGHTS",
    "distance_bucket",
    "length_bucket",
    "probability_bucket",
    "share_bucket",
    "span_bucket",
    "streak_bucket",
    "trend_bucket",
]

NUM_LENGTHS, NUM_SPANS, NUM_SHARES, NUM_PROBABILITIES = 12, 5, 9, 17
NUM_CONTEXTS, NUM_TIERS, NUM_COUNTS, NUM_DISTANCES = 5, 3, 4, 7
NUM_STREAKS, NUM_STREAK_LENGTHS, NUM_TRENDS, NUM_TREND_LENGTHS = 9, 6, 8, 7
NUM_SUPPORT_CLASSES, NUM_DEPTHS, NUM_SHALLOW = 5, 16, 3

# Numbers of the groups of a candidate, as in a row of `Expansions.features`.
(
    OWN,
    OWN_ROW,
    POOL,
    POOL_ROW,
    PLACE,
    TRIPLE,
    PAIR,
    TOKEN,
    MERGED_PAIR,
    MERGED_TOKEN,
    RECENT,
    SEEN,
    SUPPORT,
    STREAK,
    TREND,
    USUAL,
) = range(16)
NUM_CANDIDATE_GROUPS, NUM_NONE_GROUPS = 16, 5

_SIZES = (
    NUM_LENGTHS * NUM_SHARES,
    NUM_SPANS * NUM_PROBABILITIES,
    NUM_LENGTHS * NUM_SHARES,
    NUM_SPANS * NUM_PROBABILITIES,
    NUM_SPANS * NUM_PROBABILITIES,
    NUM_SPANS * NUM_PROBABILITIES,
    NUM_CONTEXTS * NUM_PROBABILITIES,
    NUM_TIERS * NUM_PROBABILITIES,
    NUM_COUNTS * NUM_CONTEXTS * NUM_PROBABILITIES,
    NUM_COUNTS * NUM_TIERS * NUM_PROBABILITIES,
    NUM_SPANS * 2,
    NUM_DISTANCES * 3,
    NUM_SUPPORT_CLASSES,
    NUM_STREAKS * NUM_STREAK_LENGTHS,
    NUM_TRENDS * NUM_TRENDS * NUM_TREND_LENGTHS,
    NUM_SHALLOW * NUM_PROBABILITIES,
    # of "none of the candidates"
    NUM_LENGTHS * NUM_SHARES,
    NUM_PROBABILITIES * 4,
    NUM_DEPTHS,
    NUM_LENGTHS,
    NUM_TRENDS * NUM_TRENDS,
)
# The first weight of each group.
(
    AT_OWN,
    AT_OWN_ROW,
    AT_POOL,
    AT_POOL_ROW,
    AT_PLACE,
    AT_TRIPLE,
    AT_PAIR,
    AT_TOKEN,
    AT_MERGED_PAIR,
    AT_MERGED_TOKEN,
    AT_RECENT,
    AT_SEEN,
    AT_SUPPORT,
    AT_STREAK,
    AT_TREND,
    AT_USUAL,
    AT_NONE_OWN,
    AT_NONE_ROW,
    AT_NONE_DEPTH,
    AT_NONE_POOL,
    AT_NONE_TREND,
) = (sum(_SIZES[:group]) for group in range(len(_SIZES)))
NUM_WEIGHTS = sum(_SIZES)

# Probability buckets 0 and 1 stand for "no row" and "a row without this token".
NO_ROW, NOT_IN_ROW = 0, 1


@jit
def length_bucket(length: int) -> int:
    """0 .. 11: exact up to 4, then in about equal steps of the logarithm up to `MAX_MATCH`."""
    if length <= 4:
        return length
    if length <= 6:
        return 5
    if length <= 9:
        return 6
    if length <= 15:
        return 7
    if length <= 26:
        return 8
    if length <= 48:
        return 9
    if length < 95:
        return 10
    return 11


@jit
def span_bucket(length: int) -> int:
    """0 .. 4: a coarse length, for groups that combine it with a probability."""
    if length == 0:
        return 0
    if length <= 3:
        return 1
    if length <= 6:
        return 2
    if length <= 15:
        return 3
    return 4


@jit
def probability_bucket(probability: float) -> int:
    """2 .. 16: about equal steps of the log odds, finer near 1, where a long draft lives or dies."""
    if probability < 0.28:
        if probability < 0.03:
            return 2 if probability < 0.003 else (3 if probability < 0.01 else 4)
        return 5 if probability < 0.07 else (6 if probability < 0.15 else 7)
    if probability < 0.93:
        if probability < 0.65:
            return 8 if probability < 0.45 else 9
        return 10 if probability < 0.82 else 11
    if probability < 0.993:
        return 12 if probability < 0.98 else 13
    return 14 if probability < 0.998 else (15 if probability < 0.9995 else 16)


@jit
def share_bucket(votes: int, total: int) -> int:
    """0 .. 8: none; four shares below one; unanimous by number of votes: 1, 2-3, 4-7, 8 or more."""
    if votes == 0:
        return 0
    if votes == total:
        return 5 if total == 1 else (6 if total <= 3 else (7 if total <= 7 else 8))
    if 10 * votes <= 4 * total:
        return 1 if 10 * votes <= 2 * total else 2
    return 3 if 10 * votes <= 6 * total else 4


@jit
def distance_bucket(distance: int) -> int:
    """2 .. 6: tokens since a token was last seen."""
    if distance < 8:
        return 2
    if distance < 32:
        return 3
    return 4 if distance < 128 else (5 if distance < 512 else 6)


@jit
def streak_bucket(streak: int) -> int:
    """0 .. 8: 0, 1, then a bucket for each doubling."""
    bucket = 0
    while bucket < 8 and streak >= 1 << bucket:
        bucket += 1
    return bucket


@jit
def trend_bucket(trend: float) -> int:
    """0 .. 7: eighths."""
    return min(7, int(trend * 8))
