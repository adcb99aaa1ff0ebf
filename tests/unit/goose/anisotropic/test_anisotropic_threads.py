"""Trees of a batch are the same on any number of threads, and so is all that is learned from them."""

import numpy as np
import pytest

from goose.observation import Harvest, HarvestOrigin, TreeOutcome
from goose.policies.anisotropic import AnisotropicPolicy
from goose.speculator import Speculator
from goose.verify import walk

_VOCAB = 50
_NUM_SEQUENCES = 66


def _played(num_threads: int, max_nodes: int) -> tuple[list[list[int]], np.ndarray]:
    """The trees of six steps of 66 sequences, enough for four threads, and the weights in the end."""
    built: list[AnisotropicPolicy] = []

    def build(sources: object) -> AnisotropicPolicy:
        built.append(AnisotropicPolicy(sources))  # type: ignore[arg-type]
        return built[0]

    speculator = Speculator(policy="a", budget=12, num_threads=num_threads, builders={"a": build})
    rng = np.random.default_rng(5)
    successors = rng.integers(1, _VOCAB, (_VOCAB, 4))
    names = [str(number) for number in range(_NUM_SEQUENCES)]
    for name in names:
        speculator.start_request(name, rng.integers(1, _VOCAB, 60), stop_token_ids=[0, int(name) % _VOCAB])
    trees = []
    for _ in range(6):
        batch = speculator.propose(
            names, max_draft_depths=[3 + number % 13 for number in range(_NUM_SEQUENCES)], max_nodes=max_nodes
        )
        outcomes = []
        for number, tree in enumerate(batch):
            trees.append([*tree.token_ids.tolist(), *tree.parents.tolist(), *tree.sources.tolist()])
            path = walk(tree, lambda node, tree=tree: int(successors[tree.token_ids[node], rng.integers(0, 2)]))  # type: ignore[misc]
            outcomes.append(
                TreeOutcome(names[number], tree, path.accepted_nodes, path.token_ids, int(path.token_ids[-1]))
            )
        tokens = np.concatenate([tree.token_ids for tree in batch])
        nobody = np.full(len(tokens), -1)
        origin = HarvestOrigin(
            tuple(names), np.repeat(np.arange(_NUM_SEQUENCES), [tree.num_nodes for tree in batch]), nobody
        )
        probs = np.tile(np.array([0.5, 0.3, 0.1, 0.05], np.float32), (len(tokens), 1))
        speculator.observe(outcomes, Harvest(nobody, tokens, successors[tokens], probs, origin))
    return trees, built[0].weights.values


@pytest.mark.parametrize("max_nodes", [5000, 300])
@pytest.mark.parametrize("num_threads", [2, 3, 9])
def test_threads_change_nothing(num_threads: int, max_nodes: int) -> None:
    trees, weights = _played(1, max_nodes)
    threaded, learned = _played(num_threads, max_nodes)
    assert max(map(len, trees)) >= 3 * 4
    assert threaded == trees
    assert (learned == weights).all()
