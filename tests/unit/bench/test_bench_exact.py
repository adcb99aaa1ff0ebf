"""`goose bench exact` finds a difference where there is one, and says how near the tie was."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from gguf_files import tiny_llama

from goose_ray.bench.engine.decoders import Case
from goose_ray.bench.engine.exact import Check, Difference, check_greedy, check_sampled, first_difference
from goose_ray.bench.engine.references import ReferenceStore, TokenIds, TransformersReference
from goose_ray.bench.engine.report import exact_json, exact_lines
from goose_ray.bench.prompts import EncodedPrompt
from goose_ray.engine.sampling_params import SamplingParams

PROMPTS: tuple[TokenIds, ...] = ((5, 6, 7), (8, 9))


@pytest.fixture
def reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TransformersReference:
    monkeypatch.setenv("GOOSE_CACHE", str(tmp_path / "cache"))
    tiny_llama().save_pretrained(tmp_path / "model")
    return TransformersReference(tmp_path / "model", dtype=torch.float32, device=torch.device("cpu"))


def plain(prompt: TokenIds, max_tokens: int) -> TokenIds:
    """Greedy decoding written out."""
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(max_tokens):
            ids.append(int(tiny_llama()(torch.tensor([ids])).logits[0, -1].argmax()))
    return tuple(ids[len(prompt) :])


class Scripted:
    """Answers by (policy, concurrency, case)."""

    def __init__(self, answer: Callable[[str, int, int], TokenIds]) -> None:
        self._answer = answer

    def answers(
        self,
        cases: Sequence[Case],
        sampling: SamplingParams,
        *,
        policy: str,
        concurrency: int,
        on_answer: Callable[[], object],
    ) -> dict[int, TokenIds]:
        return {index: self._answer(policy, concurrency, index) for index in range(len(cases))}


CASES = [Case(f"c{i}", "", EncodedPrompt(ids)) for i, ids in enumerate(PROMPTS)]


def greedy_checks(reference: TransformersReference, answer: Callable[[str, int, int], TokenIds]) -> list[Check]:
    return check_greedy(
        Scripted(answer),
        CASES,
        ReferenceStore(reference, weights="w", dtype=torch.float32),
        reference,
        policies=["chain", "goose"],
        concurrencies=[1, 8],
        max_tokens=6,
    )


def test_equal_replies_pass_under_every_policy_and_concurrency(reference: TransformersReference) -> None:
    checks = greedy_checks(reference, lambda policy, concurrency, index: plain(PROMPTS[index], 6))
    assert [(check.policy, check.concurrency) for check in checks] == [
        ("chain", 1),
        ("chain", 8),
        ("goose", 1),
        ("goose", 8),
    ]
    assert not any(check.differences for check in checks)
    assert exact_json(checks)["exact"]


def test_one_wrong_token_is_found_with_the_references_logit_gap(reference: TransformersReference) -> None:
    right = plain(PROMPTS[1], 6)
    wrong = (*right[:4], right[4] ^ 1, right[5])

    def answer(policy: str, concurrency: int, index: int) -> TokenIds:
        return wrong if (policy, concurrency, index) == ("goose", 8, 1) else plain(PROMPTS[index], 6)

    *equal, check = greedy_checks(reference, answer)
    assert not any(check.differences for check in equal)
    (difference,) = check.differences
    assert (difference.case, difference.position) == ("c1", 4)
    with torch.inference_mode():
        logits = tiny_llama()(torch.tensor([[*PROMPTS[1], *right[:4]]])).logits[0, -1]
    assert difference.logit_gap == pytest.approx(float(logits[right[4]] - logits[wrong[4]]), abs=1e-6)
    assert difference.logit_gap is not None
    assert difference.logit_gap > 0
    report = exact_json([check])
    assert not report["exact"]
    assert f"c1: token 4 is {wrong[4]}, expected {right[4]} (logit gap" in exact_lines([check])


def test_a_reply_cut_short_differs_without_a_gap(reference: TransformersReference) -> None:
    checks = greedy_checks(reference, lambda policy, concurrency, index: plain(PROMPTS[index], 5))
    assert checks[0].differences[0] == Difference("c0", 5, plain(PROMPTS[0], 6)[5], None)


def test_sampled_replies_are_compared_with_plain_decoding_one_by_one() -> None:
    def answer(policy: str, concurrency: int, index: int) -> TokenIds:
        return (1, 2, 9) if (policy, concurrency) == ("goose", 8) else (1, 2, 3)

    checks = check_sampled(
        Scripted(answer),
        CASES,
        SamplingParams(temperature=0.8),
        policies=["autoregressive", "goose"],
        concurrencies=[1, 8],
    )
    assert [(c.policy, c.concurrency, len(c.differences)) for c in checks] == [
        ("autoregressive", 8, 0),
        ("goose", 1, 0),
        ("goose", 8, 2),
    ]


@pytest.mark.parametrize(
    ("expected", "found", "where"),
    [
        ((1, 2), (1, 2), None),
        ((), (), None),
        ((1, 2), (1, 3), (1, 2, 3)),
        ((1, 2), (1,), (1, 2, None)),
        ((1,), (1, 2), (1, None, 2)),
    ],
)
def test_first_difference(
    expected: TokenIds, found: TokenIds, where: tuple[int, int | None, int | None] | None
) -> None:
    assert first_difference("c", expected, found) == (None if where is None else Difference("c", *where))
