"""Whatever is drafted, sampled outputs have exactly the distribution that was asked for.

Outputs of three tokens over a vocabulary of five are enumerated by plain loops; each case draws 4,000 of them (seeds
fixed) through the runner's verification and compares by chi-square. A correct sampler fails a case with probability
1e-6, so any of all cases with less than 1e-4. Logits depend on the whole output so far and come from a table, so that
the distribution is known.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from runner_steps import Part, build_step
from sampling_reference import output_distribution

from goose_ray.engine.logit_rules import LogitRules
from goose_ray.engine.request import GenerationRequest
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.engine.step import StepBatch
from goose_ray.runner.verification import score_rows, verify_trees

_VOCAB, _LENGTH, _DRAWS = 5, 3, 4_000
_FALSE_ALARM = 1e-6
_PROMPT = (3, 3)
_END = (4,)

# Tokens and parents of the draft nodes; 0 is the anchor. Cut to the depth that the output still has.
_TREES = {
    "plain": ([], []),
    "chain": ([1, 2, 1], [0, 1, 2]),
    "repeating-chain": ([1, 1, 1], [0, 1, 2]),
    # every token at every place
    "wide": (
        [*range(_VOCAB), *list(range(_VOCAB)) * _VOCAB],
        [*[0] * _VOCAB, *(1 + i // _VOCAB for i in range(_VOCAB * _VOCAB))],
    ),
    # the same token twice under one parent, with other children each, and once more further down
    "duplicates": ([1, 1, 0, 2, 3, 1, 1, 0, 0], [0, 0, 0, 1, 2, 1, 2, 3, 3]),
}

_ASKED: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.7},
    "top_p": {"top_p": 0.75},
    "top_k": {"top_k": 3},
    "min_p": {"min_p": 0.25},
    "min_p-top_k-top_p": {"temperature": 1.3, "min_p": 0.1, "top_k": 4, "top_p": 0.9},
    "repetition": {"repetition_penalty": 1.8},
    "frequency": {"frequency_penalty": 1.5},
    "presence": {"presence_penalty": -1.2},
    "logit_bias": {"logit_bias": ((0, 1.5), (2, -2.0))},
    "min_tokens": {"min_tokens": 2, "max_tokens": 3, "stop_token_ids": (0,)},
    "all": {
        "temperature": 0.9,
        "top_p": 0.95,
        "min_p": 0.02,
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.4,
        "presence_penalty": 0.3,
        "logit_bias": ((1, 1.0),),
        "min_tokens": 1,
    },
}


def _index(output: Sequence[int]) -> int:
    """A number of its own for each output of up to three tokens."""
    number = 0
    for token in output:
        number = number * (_VOCAB + 1) + token + 1
    return number


_TABLE = torch.randn((_VOCAB + 1) ** _LENGTH, _VOCAB, generator=torch.Generator().manual_seed(5)) * 1.2


class _Sequence:
    def __init__(self, sampling: SamplingParams) -> None:
        request = GenerationRequest(request_id="r", prompt_token_ids=_PROMPT, sampling=sampling)
        self.sampling = sampling
        self.rules = LogitRules.of(request, (*_END, *sampling.stop_token_ids), _VOCAB)
        self.output: list[int] = []

    def part(self, drafts: tuple[list[int], list[int]]) -> Part:
        rules = self.rules if self.rules is not None and self.rules.apply_from(len(self.output)) else None
        return Part(
            chain=[(*_PROMPT, *self.output)[-1]],
            drafts=drafts,
            sampling=self.sampling,
            output_position=len(self.output),
            logit_rules=rules,
        )

    def commit(self, token_ids: list[int]) -> None:
        self.output += token_ids
        if self.rules is not None:
            self.rules.commit(token_ids)


def _cut(drafts: tuple[list[int], list[int]], max_depth: int) -> tuple[list[int], list[int]]:
    tokens, parents = drafts
    depths = [0]
    for parent in parents:
        depths.append(depths[parent] + 1)
    kept = [node for node in range(1, len(depths)) if depths[node] <= max_depth]
    place = {0: 0, **{node: number for number, node in enumerate(kept, 1)}}
    return [tokens[node - 1] for node in kept], [place[parents[node - 1]] for node in kept]


def _hidden(batch: StepBatch, outputs: Sequence[Sequence[int]]) -> torch.Tensor:
    """[T, 1]: the number of the output that stands at each row."""
    hidden = np.zeros((batch.num_rows, 1), dtype=np.int64)
    for step, output in zip(batch.sequences, outputs, strict=True):
        hidden[step.row_start] = _index(output)
        for row in range(step.row_start + 1, step.row_end):
            hidden[row] = hidden[batch.parents[row]] * (_VOCAB + 1) + batch.token_ids[row] + 1
    return torch.from_numpy(hidden)


def _sampled_outputs(sampling: Sequence[SamplingParams], drafts: tuple[list[int], list[int]]) -> list[tuple[int, ...]]:
    sequences = [_Sequence(one) for one in sampling]
    while active := [sequence for sequence in sequences if len(sequence.output) < _LENGTH]:
        parts = [one.part(_cut(drafts, _LENGTH - 1 - len(one.output))) for one in active]
        batch = build_step(parts, np.arange(sum(part.num_rows for part in parts)))
        hidden = _hidden(batch, [one.output for one in active])
        paths = verify_trees(batch, score_rows(batch, hidden, lambda rows: _TABLE[rows[:, 0]]))
        for sequence, path in zip(active, paths, strict=True):
            assert path is not None
            sequence.commit(path.token_ids.tolist())
    return [tuple(sequence.output) for sequence in sequences]


@pytest.mark.parametrize("tree", _TREES)
@pytest.mark.parametrize("asked", _ASKED)
def test_outputs_have_the_distribution_asked_for(asked: str, tree: str) -> None:
    sampling = [SamplingParams(seed=seed, **_ASKED[asked]) for seed in range(_DRAWS)]
    expected = output_distribution(
        lambda output: _TABLE[_index(output)].tolist(),
        sampling[0],
        prompt=_PROMPT,
        length=_LENGTH,
        vocab_size=_VOCAB,
        end_ids=_END,
    )
    drawn = Counter(_sampled_outputs(sampling, _TREES[tree]))
    counts = np.asarray([drawn[output] for output in expected])
    assert counts.sum() == _DRAWS
    assert _chi_square_p(counts, np.asarray(list(expected.values()))) > _FALSE_ALARM


@pytest.mark.parametrize("asked", _ASKED)
def test_no_tree_changes_any_output(asked: str) -> None:
    """Token for token, in one batch with sequences that ask for other things."""
    others = list(_ASKED.values())
    sampling = [
        SamplingParams(seed=seed, **(_ASKED[asked] if seed % 2 else others[seed // 2 % len(others)]))
        for seed in range(200)
    ]
    sampling.append(SamplingParams(temperature=0.0))
    sampling.append(SamplingParams(**{**_ASKED[asked], "temperature": 0.0}))
    plain = _sampled_outputs(sampling, _TREES["plain"])
    for tree in _TREES:
        assert _sampled_outputs(sampling, _TREES[tree]) == plain
    assert [_sampled_outputs([one], _TREES["wide"])[0] for one in sampling[-40:]] == plain[-40:]


def _chi_square_p(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """P(a statistic as large or larger); classes expected fewer than 5 times are merged."""
    assert counts[probabilities == 0].sum() == 0, "an output that has probability 0"
    expected = probabilities * counts.sum()
    rare = expected < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    present = wanted > 0
    statistic = float(((observed - wanted)[present] ** 2 / wanted[present]).sum())
    half = torch.tensor([present.sum() - 1, statistic], dtype=torch.float64) / 2
    return float(torch.special.gammaincc(half[0], half[1]))
