"""Speculated trees are valid, within every limit, and never change the output."""

import numpy as np
import pytest
from goose_strategies import TOKENS
from hypothesis import given, settings
from hypothesis import strategies as st

from goose.observation import Harvest, TreeOutcome
from goose.policies.registry import POLICIES
from goose.speculator import Speculator
from goose.tree import TokenTree
from goose.verify import Draw, walk

STOP = 4
PROMPTS = st.lists(st.lists(TOKENS, min_size=1, max_size=30), min_size=1, max_size=4)


def reply_after(prefix: list[int]) -> int:
    """A target that mostly repeats itself, so that drafts are accepted, and sometimes does not."""
    mixed = sum(token * weight for token, weight in zip(prefix[-3:], (3, 5, 7), strict=False))
    return mixed % 5 if len(prefix) % 11 else (mixed + len(prefix)) % 5


def replying_after(text: list[int], tree: TokenTree) -> Draw:
    below = [[int(tree.token_ids[node]) for node in tree.path_to(end)] for end in range(tree.num_nodes)]
    return lambda node: reply_after(text + below[node])


def check_tree(tree: TokenTree, anchor: int, max_depth: int) -> None:
    rebuilt = TokenTree.from_parents(tree.token_ids, tree.parents)
    assert rebuilt.depths.tolist() == tree.depths.tolist()
    assert tree.token_ids[0] == anchor
    assert tree.depths.max() <= max_depth
    assert (tree.sources[1:] > 0).all()
    assert tree.sources[0] == 0
    assert ((tree.probs >= 0) & (tree.probs <= 1)).all()
    assert STOP not in tree.token_ids[1:].tolist()
    # At most one child of a node is accepted.
    assert np.bincount(tree.parents[1:], weights=tree.probs[1:]).max(initial=0.0) <= 1.0 + 1e-6
    children = list(zip(tree.parents[1:].tolist(), tree.token_ids[1:].tolist(), strict=True))
    assert len(children) == len(set(children)), "two children of one node hold the same token"


def harvest_of(text: list[int]) -> Harvest:
    """What a target would be harvested for along a text: its own choice first, then two others."""
    following = [reply_after(text[: end + 1]) for end in range(len(text))]
    top_ids = np.asarray([[token, (token + 1) % 5, (token + 2) % 5] for token in following], dtype=np.int64)
    return Harvest(
        previous_ids=np.asarray([-1, *text[:-1]], dtype=np.int64),
        token_ids=np.asarray(text, dtype=np.int64),
        top_ids=top_ids,
        top_probs=np.tile(np.asarray([0.7, 0.2, 0.005], dtype=np.float32), (len(text), 1)),
    )


@pytest.mark.parametrize("policy", [*POLICIES, None])
@settings(max_examples=60, deadline=None)
@given(
    prompts=PROMPTS,
    budget=st.integers(1, 80),
    spare_nodes=st.integers(0, 200),
    depths=st.lists(st.integers(0, 30), min_size=4, max_size=4),
    num_steps=st.integers(1, 6),
)
def test_trees_are_valid_and_the_output_is_the_targets(
    policy: str | None,
    prompts: list[list[int]],
    budget: int,
    spare_nodes: int,
    depths: list[int],
    num_steps: int,
) -> None:
    speculator = Speculator(budget=budget, harvest_k=3)
    names = [f"request {number}" for number in range(len(prompts))]
    texts = [list(prompt) for prompt in prompts]
    mixed = list(POLICIES)
    for number, (name, prompt) in enumerate(zip(names, prompts, strict=True)):
        # None: each request another policy, in one batch.
        speculator.start_request(name, prompt, stop_token_ids=[STOP], policy=policy or mixed[number % len(mixed)])
    for _ in range(num_steps):
        limits = depths[: len(names)]
        max_nodes = len(names) + spare_nodes
        batch = speculator.propose(names, max_draft_depths=limits, max_nodes=max_nodes)
        assert batch.num_nodes <= max_nodes
        outcomes = []
        for name, text, tree, limit in zip(names, texts, batch, limits, strict=True):
            check_tree(tree, text[-1], limit)
            path = walk(tree, replying_after(text, tree))
            outcomes.append(TreeOutcome(name, tree, path.accepted_nodes, path.token_ids, int(path.token_ids[-1])))
            for token in path.token_ids.tolist():
                assert token == reply_after(text)
                text.append(token)
        wanted = speculator.harvest_k > 0
        credited = speculator.observe(outcomes, harvest_of(texts[0]) if wanted else None)
        for outcome, by_source in zip(outcomes, credited, strict=True):
            assert all(0 <= accepted <= attempted for attempted, accepted in by_source.values())
            assert max((accepted for _, accepted in by_source.values()), default=0) <= len(outcome.accepted_nodes)
    for name in names:
        speculator.stop_request(name)
    assert speculator.harvest_k == 0
