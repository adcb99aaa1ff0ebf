"""The arrays that trees are built in, a few trees at a time, so that they stay in the processor's cache.

Each of those trees has a *lane*: its share of the nodes, the expansions and the queue. Node and expansion numbers
count through all lanes, so that whoever follows them needs no lane.

A *node* is a candidate that was worth putting in the queue, selected or not; an *expansion* is what is known of a
node's children: the occurrences that led there. Candidates are those of the node being expanded. Records are rows of
a few wide arrays rather than many narrow ones: a call passes fewer arrays, and a record is one cache line.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from goose.anisotropic.features import NUM_SUPPORT_CLASSES
from goose.anisotropic.successors import NUM_ENTRIES, Successors
from goose.anisotropic.texts import NUM_SUCCESSORS, Texts, aligned_zeros

__all__ = [
    "MAX_CANDIDATES",
    "MAX_NODES",
    "MAX_TREE_NODES",
    "NUM_LANES",
    "Memory",
    "Requests",
    "Workspace",
    "new_requests",
    "new_workspace",
]

# Largest tree of one sequence. A loop that is copied perfectly commits no more a step.
MAX_TREE_NODES = 256
# Nodes put in the queue for one tree; a full workspace ends the search.
MAX_NODES = 2048
# Trees built in turn. While one waits for memory the others are worked on; more than this leave the cache.
NUM_LANES = 4
# Occurrences followed, and candidates weighed, at one node: more gave no longer drafts.
MAX_OWN, MAX_POOL, MAX_CANDIDATES = 16, 6, 16

# Columns of `Requests.adapted`.
SUPPORT_BIAS = 0
TEMPERATURE, STREAK, OWN_TREND, TOP_TREND, TAU = range(NUM_SUPPORT_CLASSES, NUM_SUPPORT_CLASSES + 5)
NUM_ADAPTED = NUM_SUPPORT_CLASSES + 5
# Places of a request's table of last positions, and bits of an entry that hold the position.
NUM_RECENT, RECENT_BITS = 1 << 12, 22

# Columns of `Workspace.nodes`; the two tokens before the node's own stand on its path, or in the text (NO_TOKEN: none).
# Then its places in the index and in the tables, with their keys; -1: none.
TOKEN, BEFORE, TWICE_BEFORE, PARENT, DEPTH, SOURCES, EXPANSION, SELECTED = range(8)
OWN_CODE, POOL_CODE, TOKEN_PLACE, TOKEN_KEY, PAIR_PLACE, PAIR_KEY, TRIPLE_PLACE, TRIPLE_KEY = range(8, 16)
# Columns of `Workspace.probs`: P(node | parent), P(node).
PROB, PATH_PROB = range(2)
# Columns of `Workspace.own` and `.pool`: a position whose last token is the node's, how far back the text agrees, and
# the token behind it.
AT, LENGTH, NEXT = range(3)
# Columns of `Workspace.candidates`: the token, bits of its sources; longest match that continues with it, long matches
# that do, how likely the target found that continuation at the longest; its probability buckets in rows and means, and
# among the usual tokens.
(
    ID,
    SOURCE,
    OWN_LENGTH,
    OWN_VOTES,
    OWN_FOLLOWED,
    POOL_LENGTH,
    POOL_VOTES,
    POOL_FOLLOWED,
    IN_PLACE,
    IN_TRIPLE,
    IN_PAIR,
    IN_PAIR_MEAN,
    IN_TOKEN,
    IN_TOKEN_MEAN,
    IN_USUAL,
) = range(15)
# Columns of `Workspace.growth`: nodes made, of those selected, expanded and waiting in the queue; the lowest tally that
# may still be among the floor's nodes, and nodes made there and above.
NUM_NODES, NUM_SELECTED, NUM_EXPANDED, NUM_QUEUED, LOWEST, NUM_ABOVE, IS_GROWING = range(7)
# Classes of path probabilities that nodes are counted in.
NUM_TALLIES = 64
# Harvested rows whose records are asked for together.
NUM_AHEAD = 16
# Hash places for the tokens of one node's candidates.
NUM_STAMPS = 256


class Memory(NamedTuple):
    """What is known across requests."""

    texts: Texts
    successors: Successors
    # [NUM_WEIGHTS]: the model, and the sum of its squared gradients (Adagrad)
    weights: NDArray[np.float64]
    squares: NDArray[np.float64]


class Requests(NamedTuple):
    """The live requests, by slot."""

    # [num_slots]: first position of the text, that of the last committed token, of the first output token
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    output_starts: NDArray[np.int64]
    # [num_slots]: key of its own index; whose pooled texts and rows it may see
    owners: NDArray[np.int64]
    scopes: NDArray[np.int64]
    # [num_slots, NUM_ADAPTED]: what the model adapts to the request
    adapted: NDArray[np.float64]
    # [num_slots, NUM_RECENT]: where a token was last, see `goose.anisotropic.recent`
    recent: NDArray[np.int32]
    # [num_slots, 1 + 3 * (MAX_OWN + MAX_POOL)]: number of occurrences at the anchor + 1, own and 32 times pooled, and
    # they themselves; 0: not known. Whoever changes any text sets all to 0
    found: NDArray[np.int32]


class Workspace(NamedTuple):
    """Columns are named above."""

    # [NUM_LANES * MAX_NODES, 16], [NUM_LANES * MAX_NODES, 2]
    nodes: NDArray[np.int32]
    probs: NDArray[np.float64]
    # [NUM_LANES * MAX_TREE_NODES, MAX_OWN, 3], [NUM_LANES * MAX_TREE_NODES, MAX_POOL, 3]
    own: NDArray[np.int32]
    pool: NDArray[np.int32]
    # [NUM_LANES * MAX_TREE_NODES, 2]: occurrences, own and pooled
    num_occurrences: NDArray[np.int32]
    # [MAX_CANDIDATES, 16]
    candidates: NDArray[np.int32]
    # [MAX_CANDIDATES + 1]: logit, and odds, of each candidate; the last place is that of "none of them"
    logits: NDArray[np.float64]
    odds: NDArray[np.float64]
    # [NUM_STAMPS + 2]: serial number of the expansion * MAX_CANDIDATES + candidate; then that number, and how many
    # candidates there are
    stamps: NDArray[np.int64]
    # [NUM_LANES, MAX_NODES + 1]: the queue
    queue_probs: NDArray[np.float64]
    queue_nodes: NDArray[np.int32]
    # [NUM_LANES, 8]; [NUM_LANES]: no node below can be among the floor's, so many above are known
    growth: NDArray[np.int64]
    cuts: NDArray[np.float64]
    # [NUM_LANES, NUM_TALLIES]: nodes by class of their path probability; [1]: a number, and its bits (the same memory)
    tallies: NDArray[np.int64]
    number: NDArray[np.float64]
    number_bits: NDArray[np.int64]
    # [NUM_LANES, 5]: of the anchor's n-grams, own of 1, 2, 4 tokens and pooled of 2, 4: places in the index, then in
    # the texts
    cursors: NDArray[np.int64]
    # [MAX_NODES]: places of a lane's nodes in its tree
    places: NDArray[np.int64]
    # [NUM_AHEAD, 4]: where their records are
    ahead: NDArray[np.int64]
    # [NUM_SUCCESSORS], [NUM_ENTRIES]: of the row being filed, and of the mean that it is merged with
    buckets: NDArray[np.uint8]
    old_ids: NDArray[np.int32]
    old_means: NDArray[np.float64]


def new_requests(num_slots: int) -> Requests:
    def numbers() -> NDArray[np.int64]:
        return np.zeros(num_slots, np.int64)

    return Requests(
        starts=numbers(),
        ends=numbers(),
        output_starts=numbers(),
        owners=numbers(),
        scopes=numbers(),
        adapted=np.zeros((num_slots, NUM_ADAPTED)),
        recent=np.zeros((num_slots, NUM_RECENT), np.int32),
        found=np.zeros((num_slots, 1 + 3 * (MAX_OWN + MAX_POOL)), np.int32),
    )


def new_workspace() -> Workspace:
    number = np.zeros(1)
    return Workspace(
        nodes=aligned_zeros(NUM_LANES * MAX_NODES, 16, np.dtype(np.int32)),
        probs=np.zeros((NUM_LANES * MAX_NODES, 2)),
        own=np.zeros((NUM_LANES * MAX_TREE_NODES, MAX_OWN, 3), np.int32),
        pool=np.zeros((NUM_LANES * MAX_TREE_NODES, MAX_POOL, 3), np.int32),
        num_occurrences=np.zeros((NUM_LANES * MAX_TREE_NODES, 2), np.int32),
        candidates=aligned_zeros(MAX_CANDIDATES, 16, np.dtype(np.int32)),
        logits=np.zeros(MAX_CANDIDATES + 1),
        odds=np.zeros(MAX_CANDIDATES + 1),
        stamps=np.zeros(NUM_STAMPS + 2, np.int64),
        queue_probs=np.zeros((NUM_LANES, MAX_NODES + 1)),
        queue_nodes=np.zeros((NUM_LANES, MAX_NODES + 1), np.int32),
        growth=np.zeros((NUM_LANES, 8), np.int64),
        cuts=np.zeros(NUM_LANES),
        tallies=np.zeros((NUM_LANES, NUM_TALLIES), np.int64),
        number=number,
        number_bits=number.view(np.int64),
        cursors=np.zeros((NUM_LANES, 5), np.int64),
        places=np.zeros(MAX_NODES, np.int64),
        ahead=np.zeros((NUM_AHEAD, 4), np.int64),
        buckets=np.zeros(NUM_SUCCESSORS, np.uint8),
        old_ids=np.zeros(NUM_ENTRIES, np.int32),
        old_means=np.zeros(NUM_ENTRIES),
    )
