"""Is the output exactly that of plain decoding? Greedy: against transformers' `generate`. Sampled: policy against
policy, from the same seed. One request at a time and many.

A difference is a difference, however small its cause; the reference's logits at that place tell a near-tie (rounding
order) from a fault.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from goose.policies.autoregressive import AutoregressivePolicy
from goose_ray.bench.engine.decoders import Case, Decoder
from goose_ray.bench.engine.references import ReferenceStore, TokenIds, TransformersReference
from goose_ray.bench.prompts import PromptFile, encode
from goose_ray.bench.replies import greedy
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.engine.tokenizer import Tokenizer

__all__ = ["SAMPLING_SEED", "Check", "Difference", "check_greedy", "check_sampled", "first_difference", "read_cases"]

# Any: what counts is that every policy draws from the same one.
SAMPLING_SEED = 20240229


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a reply first leaves the expected one. A token is None where that reply has ended already.

    `logit_gap` is the reference's logit of the expected token less that of the found one; None where there is none.
    """

    case: str
    position: int
    expected: int | None
    found: int | None
    logit_gap: float | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """One policy at one concurrency."""

    kind: str
    policy: str
    concurrency: int
    num_cases: int
    differences: tuple[Difference, ...]


def read_cases(files: Sequence[PromptFile], tokenizer: Tokenizer, *, chat: bool, limit: int) -> list[Case]:
    """The first request of every dialogue, its prompt at most `limit` tokens long."""
    cases = []
    for file in files:
        for dialogue in file.dialogues:
            request = dialogue.request_after([], chat=chat)
            if request is not None:
                cases.append(Case(f"{file.name} {dialogue.dialogue_id}", request, encode(request, tokenizer, limit)))
    return cases


def check_greedy(
    decoder: Decoder,
    cases: Sequence[Case],
    references: ReferenceStore,
    reference: TransformersReference,
    *,
    policies: Sequence[str],
    concurrencies: Sequence[int],
    max_tokens: int,
    on_reply: Callable[[], object] = lambda: None,
) -> list[Check]:
    """Compares the token ids with those of `references`, which keeps what `reference` decodes."""
    plain = references.token_ids([case.prompt.token_ids for case in cases], max_tokens, on_reply)
    expected = {index: plain[case.prompt.token_ids] for index, case in enumerate(cases)}

    def gap(index: int, difference: Difference) -> float | None:
        if difference.expected is None or difference.found is None:
            return None
        prefix = (*cases[index].prompt.token_ids, *expected[index][: difference.position])
        return _logit_gap(reference, prefix, difference.expected, difference.found)

    checks = []
    for policy in policies:
        for concurrency in concurrencies:
            found = decoder.answers(
                cases, greedy(max_tokens), policy=policy, concurrency=concurrency, on_answer=on_reply
            )
            checks.append(_check("greedy", policy, concurrency, cases, expected, found, gap))
    return checks


def check_sampled(
    decoder: Decoder,
    cases: Sequence[Case],
    sampling: SamplingParams,
    *,
    policies: Sequence[str],
    concurrencies: Sequence[int],
    on_reply: Callable[[], object] = lambda: None,
) -> list[Check]:
    """Compares with what the policy `autoregressive` draws from the same seed, one request at a time."""
    expected = decoder.answers(cases, sampling, policy=AutoregressivePolicy.name, concurrency=1, on_answer=on_reply)
    checks = []
    for policy in policies:
        for concurrency in concurrencies:
            if (policy, concurrency) == (AutoregressivePolicy.name, 1):
                continue
            found = decoder.answers(cases, sampling, policy=policy, concurrency=concurrency, on_answer=on_reply)
            checks.append(_check("sampled", policy, concurrency, cases, expected, found, lambda index, found: None))
    return checks


def first_difference(case: str, expected: TokenIds, found: TokenIds) -> Difference | None:
    for position in range(max(len(expected), len(found))):
        wanted = expected[position] if position < len(expected) else None
        got = found[position] if position < len(found) else None
        if wanted != got:
            return Difference(case, position, wanted, got)
    return None


def _check(
    kind: str,
    policy: str,
    concurrency: int,
    cases: Sequence[Case],
    expected: Mapping[int, TokenIds],
    found: Mapping[int, TokenIds],
    gap: Callable[[int, Difference], float | None],
) -> Check:
    differences = []
    for index, case in enumerate(cases):
        difference = first_difference(case.name, expected[index], found[index])
        if difference is not None:
            differences.append(replace(difference, logit_gap=gap(index, difference)))
    return Check(kind, policy, concurrency, len(cases), tuple(differences))


def _logit_gap(reference: TransformersReference, prefix: TokenIds, expected: int, found: int) -> float:
    with torch.inference_mode():
        logits = reference.model(torch.tensor([prefix], device=reference.model.device)).logits[0, -1].float()
    return float(logits[expected] - logits[found])
