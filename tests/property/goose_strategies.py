"""Hypothesis strategies for trees, shared by the property tests of the speculation library."""

from collections.abc import Sequence

from hypothesis import strategies as st

from goose.tree import TokenTree
from goose.verify import Draw

__all__ = ["TOKENS", "replying", "token_trees"]

# Few enough that tokens repeat and siblings may be equal.
TOKENS = st.integers(0, 4)


@st.composite
def token_trees(draw: st.DrawFn, *, max_nodes: int = 24, num_sources: int = 2) -> TokenTree:
    """Any tree: parents before children, siblings with equal tokens, nodes of several sources or of none."""
    num_nodes = draw(st.integers(1, max_nodes))
    return TokenTree.from_parents(
        [draw(TOKENS) for _ in range(num_nodes)],
        [-1, *(draw(st.integers(0, node - 1)) for node in range(1, num_nodes))],
        sources=[0, *(draw(st.integers(0, 2**num_sources - 1)) for _ in range(1, num_nodes))],
        probs=[1.0, *(draw(st.floats(0.0, 1.0, width=32)) for _ in range(1, num_nodes))],
    )


def replying(tree: TokenTree, reply: Sequence[int]) -> Draw:
    """A target that goes on with `reply` behind the anchor, whatever was drafted."""
    return lambda node: reply[int(tree.depths[node])]
