"""Nodes of the tree being built: their paths, and where in the memory their successors are to be looked for.

Those places lie all over a few megabytes. They are asked for when a node is made, so that they are at hand when it is
expanded; and the latest occurrences, which the index then names, while the node before it is. A node that never is
expanded costs a few loads that nobody waits for.
"""

import numpy as np
from numpy.typing import NDArray

from goose.anisotropic.hashing import ngram_hash
from goose.anisotropic.successors import Successors, locate_pair, locate_token, locate_triple
from goose.anisotropic.texts import NO_TOKEN, OWN_LINKS, TEXT_TOKEN, Texts, prefetch_around, prefetch_row
from goose.anisotropic.workspace import (
    AT,
    BEFORE,
    DEPTH,
    NEXT,
    OWN_CODE,
    PAIR_KEY,
    PAIR_PLACE,
    PARENT,
    POOL_CODE,
    SELECTED,
    SOURCES,
    TOKEN,
    TOKEN_KEY,
    TOKEN_PLACE,
    TRIPLE_KEY,
    TRIPLE_PLACE,
    TWICE_BEFORE,
)
from goose.jit import jit, prefetch

__all__ = ["add_node", "locate", "place_anchor", "prefetch_further", "prefetch_inherited", "prefetch_occurrences"]


@jit
def place_anchor(
    texts: Texts,
    successors: Successors,
    nodes: NDArray[np.int32],
    node: int,
    start: int,
    end: int,
    owner: int,
    scope: int,
) -> None:
    """The last token of the text."""
    nodes[node, TOKEN] = texts.records[end, TEXT_TOKEN]
    nodes[node, BEFORE] = texts.records[end - 1, TEXT_TOKEN] if end - 1 >= start else NO_TOKEN
    nodes[node, TWICE_BEFORE] = texts.records[end - 2, TEXT_TOKEN] if end - 2 >= start else NO_TOKEN
    nodes[node, PARENT] = -1
    nodes[node, DEPTH] = nodes[node, SOURCES] = nodes[node, SELECTED] = 0
    nodes[node, TOKEN_PLACE] = -1
    locate(texts, successors, nodes, node, owner, scope)


@jit
def add_node(nodes: NDArray[np.int32], node: int, parent: int, token: int, sources: int) -> None:
    """To be located before it is expanded."""
    nodes[node, TOKEN] = token
    nodes[node, BEFORE] = nodes[parent, TOKEN]
    nodes[node, TWICE_BEFORE] = nodes[parent, BEFORE]
    nodes[node, PARENT] = parent
    nodes[node, DEPTH] = nodes[parent, DEPTH] + 1
    nodes[node, SOURCES] = sources
    nodes[node, SELECTED] = 0
    nodes[node, TOKEN_PLACE] = -1


@jit
def locate(texts: Texts, successors: Successors, nodes: NDArray[np.int32], node: int, owner: int, scope: int) -> None:
    """Finds the places of a node in the index and in the tables, if they are not known, and asks for what is there."""
    if nodes[node, TOKEN_PLACE] >= 0:
        return
    a, b, c = int(nodes[node, TOKEN]), int(nodes[node, BEFORE]), int(nodes[node, TWICE_BEFORE])
    place, key = locate_token(a, scope)
    nodes[node, TOKEN_PLACE], nodes[node, TOKEN_KEY] = place, key
    prefetch(successors.tokens, place, 0)
    nodes[node, PAIR_PLACE] = nodes[node, TRIPLE_PLACE] = -1
    nodes[node, OWN_CODE] = nodes[node, POOL_CODE] = -1
    if b == NO_TOKEN:
        return
    own_code = ngram_hash(a, b, NO_TOKEN, NO_TOKEN, owner) & (texts.own_heads.shape[1] - 1)
    pool_code = ngram_hash(a, b, NO_TOKEN, NO_TOKEN, scope) & (texts.pool_heads.shape[1] - 1)
    nodes[node, OWN_CODE], nodes[node, POOL_CODE] = own_code, pool_code
    prefetch(texts.own_heads, 1, own_code)
    prefetch(texts.pool_heads, 0, pool_code)
    place, key = locate_pair(a, b, scope)
    nodes[node, PAIR_PLACE], nodes[node, PAIR_KEY] = place, key
    prefetch(successors.pairs, place, 0)
    if c == NO_TOKEN:
        return
    place, key = locate_triple(a, b, c, scope)
    nodes[node, TRIPLE_PLACE], nodes[node, TRIPLE_KEY] = place, key
    prefetch(successors.triples, place, 0)


@jit
def prefetch_occurrences(texts: Texts, nodes: NDArray[np.int32], node: int) -> None:
    """Asks for what a search below the anchor will compare first, where the index names it already."""
    if nodes[node, OWN_CODE] >= 0:
        prefetch_around(texts.records, int(texts.own_heads[1, int(nodes[node, OWN_CODE])]) - 1)
        prefetch_around(texts.records, int(texts.pool_heads[0, int(nodes[node, POOL_CODE])]) - 1)


@jit
def prefetch_further(texts: Texts, nodes: NDArray[np.int32], node: int) -> None:
    """Asks for what comes after that: the row at the latest occurrence, and the occurrence before it."""
    if nodes[node, OWN_CODE] >= 0:
        at = max(0, int(texts.own_heads[1, int(nodes[node, OWN_CODE])]) - 1)
        prefetch_row(texts.rows, at)
        prefetch_around(texts.records, int(texts.records[at, OWN_LINKS + 1]) - 1)


@jit
def prefetch_inherited(texts: Texts, occurrences: NDArray[np.int32], count: int, token: int) -> None:
    """Asks for the text behind the occurrences of a node's parent that go on with the node's token."""
    for i in range(min(count, 4)):
        if occurrences[i, NEXT] == token:
            # Near the end of the text this may be a place of the path, behind all text.
            at = min(int(occurrences[i, AT]) + 2, texts.records.shape[0] - 1)
            prefetch(texts.records, at, 0)
            prefetch_row(texts.rows, at - 1)
