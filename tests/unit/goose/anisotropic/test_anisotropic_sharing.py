"""What one speculator has learned as another's start: tuned trees, merged weights, texts without those of salts."""

import numpy as np
from numpy.typing import NDArray
from recording_builders import make_recording, random_recording

from goose.anisotropic.calibration_file import CalibrationFile
from goose.anisotropic.known_texts import KnownTexts
from goose.anisotropic.sharing import merged, since
from goose.anisotropic.weights import Weights
from goose.observation import TreeOutcome
from goose.policies.registry import calibrated
from goose.replay import Recording, replay
from goose.speculator import Speculator
from goose.tree import TokenTree
from goose.tuning import TreeTuning

REPLY = random_recording("reply", seed=2, vocab_size=500)
# The same sentence again and again among words that never recur.
_WORDS = iter(range(1000, 9000))
MIXED = make_recording("mixed", [1, 2, 3, 4], [t for _ in range(20) for t in (1, 2, 3, next(_WORDS), next(_WORDS))])


def serving(file: CalibrationFile | None = None) -> Speculator:
    if file is None:
        return Speculator(policy="anisotropic", budget=8)
    return Speculator(policy="anisotropic", budget=8, builders=calibrated(file))


def learned(speculator: Speculator, max_tokens: int = 4096) -> CalibrationFile:
    found = speculator.learned(max_tokens)
    assert found is not None
    return found


def first_tree(speculator: Speculator, recording: Recording) -> TokenTree:
    speculator.start_request("first", recording.prompt_ids)
    return speculator.propose(["first"], max_draft_depths=[16], max_nodes=16)[0]


def test_a_tuning_changes_the_probabilities_of_requests_that_start_later() -> None:
    trees = []
    for offset in (0.0, -1.5):
        speculator = serving()
        speculator.tune(TreeTuning(version=1, offsets=(offset, 0.0, 0.0)))
        prompt = [5, 6, 7, 8, 9, 5, 6, 7]
        trees.append(first_tree(speculator, make_recording("own", prompt, [8, 9])))
    assert trees[0].probs[1] > trees[1].probs[1]


def test_a_policy_that_is_built_later_is_tuned_too() -> None:
    late = Speculator(policy="chain", budget=8)
    late.tune(TreeTuning(offsets=(-1.5, 0.0, 0.0)))
    prompt = np.array([5, 6, 7, 8, 9, 5, 6, 7])
    late.start_request("late", prompt, policy="anisotropic")
    plain = serving()
    plain.start_request("late", prompt)
    tuned, untuned = (one.propose(["late"], max_draft_depths=[8], max_nodes=8)[0] for one in (late, plain))
    assert tuned.probs[1] < untuned.probs[1]


def test_steps_are_counted_for_tuning() -> None:
    speculator = serving()
    result = replay(MIXED, speculator)
    counts = speculator.tuning_counts()
    assert counts.num_trees == result.steps // 4
    assert counts.attempted > 0
    assert Speculator(policy="chain").tuning_counts().attempted == 0
    assert Speculator(policy="chain").learned(100) is None


def test_exported_texts_are_worth_what_the_replica_that_wrote_them_knows() -> None:
    veteran = serving()
    replay(REPLY, veteran)
    texts = learned(veteran).texts
    assert len(texts) == 1
    [text] = list(texts)
    assert text.num_prompt == len(REPLY.prompt_ids)
    assert text.token_ids.tolist() == [*REPLY.prompt_ids.tolist(), *REPLY.output_ids.tolist()]
    again = replay(REPLY, veteran)
    fresh = replay(REPLY, serving(CalibrationFile(Weights.prior(), texts)))
    cold = replay(REPLY, serving())
    assert fresh.steps <= again.steps + 1
    assert fresh.steps < cold.steps / 2


def test_exported_rows_are_filed_as_they_were() -> None:
    texts = [learned(serving_once(None)).texts]
    texts.append(learned(serving_once(texts[0])).texts)
    first, second = (list(one)[-1] for one in texts)
    assert np.array_equal(first.top_probs, second.top_probs)
    assert np.array_equal(
        np.where(first.top_probs > 0, first.top_ids, 0), np.where(second.top_probs > 0, second.top_ids, 0)
    )
    assert (first.top_probs[:-1] > 0).any(axis=1).all()


def serving_once(texts: KnownTexts | None) -> Speculator:
    speculator = serving(None if texts is None else CalibrationFile(Weights.prior(), texts))
    if texts is None:
        replay(REPLY, speculator)
    return speculator


def test_texts_of_a_salt_are_never_exported_and_bounds_are_kept() -> None:
    speculator = serving()
    tokens = {"salted": [71, 72, 73], None: [81, 82, 83]}
    for salt, prompt in tokens.items():
        speculator.start_request(str(salt), prompt, cache_salt=salt)
        tree = speculator.propose([str(salt)], max_draft_depths=[0], max_nodes=1)[0]
        committed = np.array([prompt[0] + 5, prompt[0] + 6])
        speculator.observe([outcome(str(salt), tree, committed)], None)
        speculator.stop_request(str(salt))
    texts = learned(speculator).texts
    assert texts.token_ids.tolist() == [81, 82, 83, 86, 87]
    assert texts.prompt_lengths.tolist() == [3]
    assert len(learned(speculator, max_tokens=4).texts) == 0


def outcome(request_id: str, tree: TokenTree, committed: NDArray[np.int64]) -> TreeOutcome:
    return TreeOutcome(request_id, tree, np.array([], np.int64), committed, int(committed[-1]))


def test_weights_count_by_what_each_has_learned_itself() -> None:
    base = Weights(np.zeros(3), np.array([1.0, 0.0, 0.0]))
    much = since(Weights(np.array([1.0, 1.0, 0.0]), np.array([4.0, 3.0, 0.0])), base)
    little = since(Weights(np.array([-1.0, -1.0, 0.0]), np.array([1.0, 1.0, 0.0])), base)
    found = merged(base, [much, little])
    assert found.values.tolist() == [0.75, 0.5, 0.0]
    assert found.squares.tolist() == [4.0, 4.0, 0.0]
    # in any order, and a start that nobody has moved from stays
    assert merged(base, [little, much]).values.tolist() == found.values.tolist()
    assert merged(base, []).values.tolist() == base.values.tolist()
