"""The arrays that trees are built in: per sequence a block of nodes and a block of expansions.

A *node* is a candidate that was worth putting in the queue, selected or not; an *expansion* is what is known of a
node's children: the occurrences that led there, the candidates, their features and probabilities. Expansions stay
until the next proposal, because the outcome of a step is learned from them.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from goose.anisotropic.features import NUM_CANDIDATE_GROUPS, NUM_NONE_GROUPS, NUM_SUPPORT_CLASSES
from goose.anisotropic.successors import Successors
from goose.anisotropic.texts import Texts

__all__ = [
    "MAX_CANDIDATES",
    "MAX_NODES",
    "MAX_TREE_NODES",
    "Candidates",
    "Memory",
    "Paths",
    "Requests",
    "Workspace",
    "new_requests",
    "new_workspace",
]

# Largest tree of one sequence. A loop that is copied perfectly commits no more a step.
MAX_TREE_NODES = 256
# Nodes put in the queue for one tree; a full block ends the search.
MAX_NODES = 2048
# Occurrences followed, and candidates weighed, at one node: more gave no longer drafts.
MAX_OWN, MAX_POOL, MAX_CANDIDATES = 16, 6, 16

# Columns of `Requests.adapted`.
SUPPORT_BIAS = 0
TEMPERATURE, STREAK, OWN_TREND, TOP_TREND, TAU = range(NUM_SUPPORT_CLASSES, NUM_SUPPORT_CLASSES + 5)
NUM_ADAPTED = NUM_SUPPORT_CLASSES + 5


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


class Paths(NamedTuple):
    """What a node stands for: the tokens from the anchor down to it."""

    # [num_nodes]; parents are node indices, -1 for the anchor
    token_ids: NDArray[np.int32]
    parents: NDArray[np.int32]
    depths: NDArray[np.int32]


class Candidates(NamedTuple):
    """The candidates of each expansion."""

    # [num_expansions]
    counts: NDArray[np.int32]
    # [num_expansions, MAX_CANDIDATES]
    ids: NDArray[np.int32]
    # [num_expansions, MAX_CANDIDATES]: bits of the sources
    sources: NDArray[np.int32]
    # [num_expansions, MAX_CANDIDATES, NUM_CANDIDATE_GROUPS]: indices of weights
    features: NDArray[np.int16]
    # [MAX_CANDIDATES, 6]: votes at the node being expanded, see `goose.anisotropic.candidates`
    votes: NDArray[np.int32]


class Workspace(NamedTuple):
    """Sequence i of a proposal has nodes `i * MAX_NODES` on and expansions `i * MAX_TREE_NODES` on.

    Compiled functions take the parts they need, not the whole: each array costs a call something.
    """

    paths: Paths
    candidates: Candidates
    # [num_nodes]: bits of the sources
    sources: NDArray[np.int32]
    # [num_nodes]: P(node | parent), P(node)
    probs: NDArray[np.float64]
    path_probs: NDArray[np.float64]
    # [num_nodes]: expansion of the node, -1: none
    expansions: NDArray[np.int32]
    # [num_nodes]: whether it belongs to the tree
    selected: NDArray[np.bool_]
    # [num_sequences]: nodes in use
    num_nodes: NDArray[np.int64]
    # [num_expansions, MAX_OWN]: positions whose last token is the node's, and how far back the text agrees
    own_at: NDArray[np.int32]
    own_lengths: NDArray[np.int32]
    # [num_expansions, MAX_POOL]
    pool_at: NDArray[np.int32]
    pool_lengths: NDArray[np.int32]
    # [num_expansions]
    num_own: NDArray[np.int32]
    num_pool: NDArray[np.int32]
    # [num_expansions, MAX_CANDIDATES]
    candidate_probs: NDArray[np.float64]
    candidate_logits: NDArray[np.float64]
    # [num_expansions], [num_expansions, NUM_NONE_GROUPS]: of the outcome "none of the candidates"
    none_logits: NDArray[np.float64]
    none_features: NDArray[np.int16]
    # [MAX_NODES + 1]: the queue of the tree being built
    queue_probs: NDArray[np.float64]
    queue_nodes: NDArray[np.int32]


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
    )


def new_workspace(num_sequences: int) -> Workspace:
    nodes, expansions = num_sequences * MAX_NODES, num_sequences * MAX_TREE_NODES

    def ints(*shape: int) -> NDArray[np.int32]:
        return np.zeros(shape, np.int32)

    return Workspace(
        paths=Paths(token_ids=ints(nodes), parents=ints(nodes), depths=ints(nodes)),
        candidates=Candidates(
            counts=ints(expansions),
            ids=ints(expansions, MAX_CANDIDATES),
            sources=ints(expansions, MAX_CANDIDATES),
            features=np.zeros((expansions, MAX_CANDIDATES, NUM_CANDIDATE_GROUPS), np.int16),
            votes=ints(MAX_CANDIDATES, 6),
        ),
        sources=ints(nodes),
        probs=np.zeros(nodes),
        path_probs=np.zeros(nodes),
        expansions=ints(nodes),
        selected=np.zeros(nodes, np.bool_),
        num_nodes=np.zeros(num_sequences, np.int64),
        own_at=ints(expansions, MAX_OWN),
        own_lengths=ints(expansions, MAX_OWN),
        pool_at=ints(expansions, MAX_POOL),
        pool_lengths=ints(expansions, MAX_POOL),
        num_own=ints(expansions),
        num_pool=ints(expansions),
        candidate_probs=np.zeros((expansions, MAX_CANDIDATES)),
        candidate_logits=np.zeros((expansions, MAX_CANDIDATES)),
        none_logits=np.zeros(expansions),
        none_features=np.zeros((expansions, NUM_NONE_GROUPS), np.int16),
        queue_probs=np.zeros(MAX_NODES + 1),
        queue_nodes=ints(MAX_NODES + 1),
    )
