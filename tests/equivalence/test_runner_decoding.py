"""Decoding with scripted trees against transformers' `generate`, and against itself without trees."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from runner_steps import GREEDY, Script, SlotDealer, decode
from tiny_models import FAMILIES, VOCAB_SIZE, tiny_model

from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.runner.local import LocalRunner

_NUM_SLOTS = 512
_NUM_TOKENS = 24


def _prompts(count: int, *, seed: int = 0) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    return [draw.integers(0, VOCAB_SIZE, 4 + 5 * i).tolist() for i in range(count)]


def _nothing(tokens: list[int]) -> tuple[list[int], list[int]]:
    return [], []


def _right(truth: Sequence[int]) -> Script:
    """A chain of the next four true tokens."""

    def script(tokens: list[int]) -> tuple[list[int], list[int]]:
        ahead = list(truth[len(tokens) : len(tokens) + 4])
        return ahead, list(range(len(ahead)))

    return script


def _wrong(truth: Sequence[int]) -> Script:
    """Three siblings with a child each, none of them true."""

    def script(tokens: list[int]) -> tuple[list[int], list[int]]:
        true = truth[len(tokens)] if len(tokens) < len(truth) else 0
        return [(true + i) % VOCAB_SIZE for i in range(1, 7)], [0, 0, 0, 1, 2, 3]

    return script


def _partly(truth: Sequence[int]) -> Script:
    """Two true levels, each the last of several siblings, then a wrong one with true tokens below it."""

    def script(tokens: list[int]) -> tuple[list[int], list[int]]:
        ahead = [*truth[len(tokens) : len(tokens) + 4], 0, 0, 0, 0][:4]
        wrong = [(token + 1) % VOCAB_SIZE for token in ahead]
        return [wrong[0], ahead[0], wrong[1], wrong[1], ahead[1], wrong[2], ahead[3]], [0, 0, 1, 2, 2, 5, 6]

    return script


_SCRIPTS = {"none-accepted": _wrong, "some-accepted": _partly, "all-accepted": _right}


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_generate(family: str) -> None:
    """Alone and in one batch, whatever is drafted; accepted counts show that the scripts do what they say."""
    model = tiny_model(family)
    prompts = _prompts(3)
    truths = []
    for prompt in prompts:
        output = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=_NUM_TOKENS)
        truths.append(output[0].tolist())
    expected = [truth[len(prompt) :] for prompt, truth in zip(prompts, truths, strict=True)]
    runner = LocalRunner(tiny_model(family), model_id=family, num_slots=_NUM_SLOTS)
    dealer = SlotDealer(_NUM_SLOTS, seed=1)
    accepted = {}
    for name, script in _SCRIPTS.items():
        requests = [(prompt, GREEDY, script(truth)) for prompt, truth in zip(prompts, truths, strict=True)]
        outputs, accepted[name] = decode(runner, dealer, requests, num_tokens=_NUM_TOKENS)
        assert outputs == expected, name
        alone, _ = decode(runner, dealer, requests[:1], num_tokens=_NUM_TOKENS)
        assert alone == expected[:1], name
    assert dealer.num_free == _NUM_SLOTS
    assert accepted["none-accepted"] == 0
    assert accepted["all-accepted"] > accepted["some-accepted"] >= len(prompts) * _NUM_TOKENS // 3


@pytest.mark.parametrize(
    "limits",
    [{}, {"top_p": 0.8}, {"top_k": 5}, {"top_k": 20, "top_p": 0.9}],
    ids=["free", "top_p", "top_k", "top_k-top_p"],
)
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_seeded_sampling_does_not_depend_on_trees_or_batch(family: str, limits: dict[str, float]) -> None:
    runner = LocalRunner(tiny_model(family), model_id=family, num_slots=_NUM_SLOTS)
    dealer = SlotDealer(_NUM_SLOTS, seed=2)
    prompts = _prompts(4)
    sampling = [SamplingParams(temperature=0.8 + 0.3 * i, seed=7 * i, **limits) for i in range(3)]  # type: ignore[arg-type]
    sampling.append(GREEDY)
    plain = [
        decode(runner, dealer, [(prompt, how, _nothing)], num_tokens=_NUM_TOKENS)[0][0]
        for prompt, how in zip(prompts, sampling, strict=True)
    ]
    for name, script in _SCRIPTS.items():
        requests = [
            (prompt, how, script([*prompt, *output]))
            for prompt, how, output in zip(prompts, sampling, plain, strict=True)
        ]
        together, accepted = decode(runner, dealer, requests, num_tokens=_NUM_TOKENS)
        assert together == plain, name
        assert (accepted == 0) == (name == "none-accepted")
        for request, expected in zip(requests, plain, strict=True):
            assert decode(runner, dealer, [request], num_tokens=_NUM_TOKENS)[0] == [expected], name


def test_seeds_differ() -> None:
    runner = LocalRunner(tiny_model("llama"), model_id="llama", num_slots=_NUM_SLOTS)
    dealer = SlotDealer(_NUM_SLOTS, seed=None)
    requests = [([1, 2, 3], SamplingParams(temperature=1.5, seed=seed), _nothing) for seed in range(4)]
    outputs, _ = decode(runner, dealer, requests, num_tokens=_NUM_TOKENS)
    assert len({tuple(output) for output in outputs}) == 4
