"""The distribution that a request asks for, one token after another, in plain loops that share no code with ours."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from goose_ray.engine.sampling_params import SamplingParams

__all__ = ["output_distribution", "processed_logits", "token_distribution"]


def processed_logits(
    logits: Sequence[float],
    sampling: SamplingParams,
    *,
    prompt: Sequence[int],
    output: Sequence[int],
    end_ids: Sequence[int] = (),
) -> list[float]:
    """What greedy decoding takes the largest of, after these output tokens."""
    allowed = set(sampling.allowed_token_ids) or range(len(logits))
    values = [value if token in allowed else -math.inf for token, value in enumerate(logits)]
    for word in sampling.bad_word_ids:
        if len(word) == 1 or tuple(output[1 - len(word) :]) == word[:-1]:
            values[word[-1]] = -math.inf
    counts = Counter(output)
    if len(output) < sampling.min_tokens:
        for token in {*end_ids, *sampling.stop_token_ids}:
            values[token] = -math.inf
    for token, bias in sampling.logit_bias:
        values[token] += bias
    for token in {*prompt, *output}:
        value, penalty = values[token], sampling.repetition_penalty
        values[token] = value / penalty if value > 0 else value * penalty
    for token, count in counts.items():
        values[token] -= sampling.frequency_penalty * count + sampling.presence_penalty
    return values


def token_distribution(values: Sequence[float], sampling: SamplingParams) -> list[float]:
    """Probabilities of the next token from processed logits. Ties at a limit are not looked after."""
    if sampling.greedy:
        best = max(values)
        return [float(index == list(values).index(best)) for index in range(len(values))]
    weights = [math.exp((value - max(values)) / sampling.temperature) for value in values]
    weights = [weight if weight >= sampling.min_p * max(weights) else 0.0 for weight in weights]
    if sampling.top_k > 0:
        kth = sorted(weights, reverse=True)[min(sampling.top_k, len(weights)) - 1]
        weights = [weight if weight >= kth else 0.0 for weight in weights]
    total, before = sum(weights), 0.0
    for index in sorted(range(len(weights)), key=lambda index: -weights[index]):
        kept = weights[index] if before < sampling.top_p * total else 0.0
        before += weights[index]
        weights[index] = kept
    return [weight / sum(weights) for weight in weights]


def output_distribution(
    logits_after: Callable[[tuple[int, ...]], Sequence[float]],
    sampling: SamplingParams,
    *,
    prompt: Sequence[int],
    length: int,
    vocab_size: int,
    end_ids: Sequence[int] = (),
) -> Mapping[tuple[int, ...], float]:
    """The probability of every output of `length` tokens, by enumeration. Nothing ends one sooner."""
    probability: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        longer: dict[tuple[int, ...], float] = {}
        for output, token in itertools.product(probability, range(vocab_size)):
            values = processed_logits(logits_after(output), sampling, prompt=prompt, output=output, end_ids=end_ids)
            longer[*output, token] = probability[output] * token_distribution(values, sampling)[token]
        probability = longer
    return probability
