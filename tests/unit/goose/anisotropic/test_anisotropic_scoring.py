"""Logits are summed in two ways, one fast and one for learning, which must name the same weights."""

import numpy as np
import pytest

from goose.anisotropic.drafter import Drafter
from goose.anisotropic.features import AT_SUPPORT
from goose.anisotropic.model import expand
from goose.anisotropic.nodes import place_anchor
from goose.anisotropic.scoring import candidate_features, none_features
from goose.anisotropic.weights import Weights
from goose.anisotropic.workspace import DEPTH, MAX_CANDIDATES, SUPPORT_BIAS, TEMPERATURE
from goose.observation import Harvest, HarvestOrigin, TreeOutcome
from goose.request import DraftRequest
from goose.tree import TokenTree


def observed(drafter: Drafter, name: str, tokens: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    """A request with a prompt, a reply and the target's rows of both."""
    half = len(tokens) // 2
    drafter.start_request(
        DraftRequest(request_id=name, prompt_ids=tokens[:half], stop_token_ids=frozenset(), cache_salt=None, budget=16)
    )
    positions = np.arange(len(tokens) - 1)
    harvest = Harvest(
        previous_ids=np.append(-1, tokens[:-2]),
        token_ids=tokens[:-1],
        top_ids=np.stack([tokens[1:], (tokens[1:] + 1) % 12], axis=1),
        top_probs=np.tile(np.asarray([0.6, 0.3], dtype=np.float32), (len(positions), 1)),
        origin=HarvestOrigin((name,), np.zeros_like(positions), positions),
    )
    tree = TokenTree.chain(int(tokens[half - 1]), tokens[half:-1].tolist(), source=1)
    accepted = np.arange(1, tree.num_nodes)
    drafter.observe([TreeOutcome(name, tree, accepted, tokens[half:], int(tokens[-1]))], harvest)


@pytest.mark.parametrize("last", [None, 40])
@pytest.mark.parametrize("seed", range(6))
def test_a_logit_is_the_sum_of_the_weights_that_learning_moves(seed: int, last: int | None) -> None:
    """`last`: a token that has no row yet stands at the end."""
    rng = np.random.default_rng(seed)
    drafter = Drafter(
        Weights(rng.normal(size=len(Weights.zero().values)), Weights.zero().squares),
        max_positions=1 << 12,
        learning_rate=0.1,
    )
    for name in ("a", "b"):
        tokens = rng.integers(0, 12, 60)
        observed(drafter, name, tokens if last is None else np.append(tokens, last))
    memory, slots, work, slot = drafter._memory, drafter._slots, drafter.workspace, drafter._slot_of["b"]
    adapted = slots.adapted
    start, end, owner, scope = (
        int(numbers[slot]) for numbers in (slots.starts, slots.ends, slots.owners, slots.scopes)
    )
    place_anchor(memory.texts, memory.successors, work.nodes, 0, start, end, owner, scope)
    found = expand(memory, slots, work, slot, 0, 0)
    assert found.num_candidates > 3
    assert (found.usual >= 0) == (last is not None)
    assert int(work.nodes[0, DEPTH]) == 0
    tables = memory.successors.tokens, memory.successors.pairs
    none = sum(memory.weights[weight] for weight in none_features(*tables, adapted, slot, 0, found))
    assert work.logits[MAX_CANDIDATES] == pytest.approx(adapted[slot, TEMPERATURE] * none)
    num_tokens = end + 1 - start
    for candidate in range(found.num_candidates):
        features = candidate_features(
            *tables, adapted, slots.recent, work.candidates, slot, num_tokens, 0, found, candidate
        )
        assert len(set(features)) == 16
        support = features[5] - AT_SUPPORT
        logit = sum(memory.weights[weight] for weight in features) + adapted[slot, SUPPORT_BIAS + support]
        assert work.logits[candidate] == pytest.approx(adapted[slot, TEMPERATURE] * logit)
