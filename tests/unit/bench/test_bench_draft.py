"""`goose bench draft`: its traffic is what it claims to be, and its figures are of the whole speculator."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from goose_ray.bench.host.draft import DraftRun
from goose_ray.bench.host.traffic import MarkovTarget
from goose_ray.cli.main import main


def test_rows_are_ranked_and_the_same_for_the_same_context() -> None:
    target = MarkovTarget(1000, seed=3)
    rng = np.random.default_rng(0)
    previous, tokens = rng.integers(-1, 1000, 400), rng.integers(0, 1000, 400)
    ids, probs = target.rows(previous, tokens)
    again, _ = target.rows(previous[::-1], tokens[::-1])
    assert (ids == again[::-1]).all()
    assert ids.min() >= 0
    assert ids.max() < 1000
    assert (np.diff(probs, axis=1) <= 0).sum() > 0.9 * probs[:, 1:].size
    assert (probs > 0).all()
    assert (probs.sum(axis=1) <= 1 + 1e-5).all()


def test_texts_follow_their_rows() -> None:
    texts = MarkovTarget(1000, seed=3).write(8, 1500, np.random.default_rng(1))
    hits = (texts.top_ids[:, :-1] == texts.token_ids[:, 1:, None]).argmax(axis=2)
    found = (texts.top_ids[:, :-1] == texts.token_ids[:, 1:, None]).any(axis=2)
    predicted = texts.top_probs[:, :-1, 0].mean()
    # Four standard deviations of 12,000 draws, and what a token named twice in a row adds.
    assert (found & (hits == 0)).mean() == pytest.approx(predicted, abs=0.03)
    assert 0.5 < predicted < 0.9
    # Spans are copied: the last eight tokens stand earlier in the text more often than chance would have it.
    text = texts.token_ids[0].tolist()
    grams = [tuple(text[i : i + 8]) for i in range(len(text) - 8)]
    assert len(grams) - len(set(grams)) > 30


@pytest.mark.parametrize("policy", ["anisotropic", "goose"])
def test_figures_are_of_trees_that_were_built_and_rows_that_were_filed(policy: str) -> None:
    cost = DraftRun(policy=policy, budget=12, batch_size=3, vocab_size=500, steps=4).measure(700)
    assert 6 < cost.nodes_per_tree < 40
    assert 1.2 < cost.tau <= cost.nodes_per_tree
    assert cost.total.cpu_us >= max(cost.propose.cpu_us, cost.observe.cpu_us) > 0
    used = {name for name, us in cost.stages_cpu_us.items() if us > 0}
    assert used == ({"build", "learn", "commit", "rows", "count"} if policy == "anisotropic" else {"count"})
    assert sum(cost.stages_cpu_us.values()) < 3 * cost.total.cpu_us


def test_json_names_the_first_context_and_the_long_one() -> None:
    arguments = ["bench", "draft", "--json", "--policy", "chain", "--batch", "2", "--steps", "2", "--context", "600"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert printed["us_per_sequence"] > 0
    assert printed["us_per_sequence_32k"] is None
    assert printed["contexts"]["600"]["nodes_per_tree"] >= 1
    assert set(printed["contexts"]["600"]) >= {"tau", "propose", "observe", "total", "stages_cpu_us"}
