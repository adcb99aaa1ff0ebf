"""`goose bench tau`: what is counted, what is compared, and what the engine has seen when it starts."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fakes import EOS, FakeRunner, FakeTokenizer, looping_model

from goose_ray.assembly import ReplicaParts
from goose_ray.bench.engine.references import EngineReference, Reference, ReferenceStore, TokenIds
from goose_ray.bench.engine.report import tau_json, tau_table
from goose_ray.bench.engine.tau import BenchmarkTau, Part, TauRun, macro_tau
from goose_ray.bench.prompts import Dialogue, PromptFile
from goose_ray.bench.repetition import copy_share
from goose_ray.config import EngineConfig

BUDGET = 16
CONFIG = EngineConfig(policy="chain", budget=BUDGET)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOSE_CACHE", str(tmp_path))


def make_parts(eos_every: int = 0) -> ReplicaParts:
    runner = FakeRunner(looping_model(256, eos_every=eos_every), vocab_size=256, num_slots=2048, max_model_len=512)
    return ReplicaParts(Path("fake"), FakeTokenizer(specials=(EOS,)), runner)


def make_run(parts: ReplicaParts, references: ReferenceStore | None = None, concurrency: int = 1) -> TauRun:
    return TauRun(
        parts=parts,
        engine=CONFIG.model_copy(update={"max_running_requests": concurrency}),
        references=references or store(EngineReference(parts, CONFIG, concurrency=1)),
        chat=False,
        max_tokens=40,
        concurrency=concurrency,
    )


def store(reference: Reference) -> ReferenceStore:
    return ReferenceStore(reference, weights="w", dtype=torch.float32)


PROMPTS = PromptFile("fake", tuple(Dialogue(f"d{i}", prompt=f"prompt {i}") for i in range(5)))


def test_counts_add_up_and_the_output_is_that_of_plain_decoding() -> None:
    result = make_run(make_parts()).measure(PROMPTS)
    assert result.total.requests == 5
    assert result.total.tokens == 5 * 40
    accepted = sum(source.accepted for source in result.by_source.values())
    assert result.total.tokens == result.total.steps + accepted, "a step commits its accepted tokens and one more"
    assert result.total.tau > 1.5, "the fake model repeats itself"
    assert 1 < result.nodes_per_step <= BUDGET
    assert result.exact
    assert (result.natural.requests + result.repetitive.requests, result.num_cut) == (5, 0)


def test_an_early_end_is_counted_as_it_comes() -> None:
    result = make_run(make_parts(eos_every=9)).measure(PROMPTS)
    assert result.total.tokens < 5 * 40
    assert result.exact


@pytest.mark.parametrize("concurrency", [2, 8])
def test_concurrency_changes_no_token(concurrency: int) -> None:
    result = make_run(make_parts(), concurrency=concurrency).measure(PROMPTS)
    assert (result.total.tokens, result.exact) == (200, True)


def test_every_file_starts_anew() -> None:
    """With `goose`, whose table of transitions would otherwise be warm from the file before."""
    run = replace(make_run(make_parts()), engine=CONFIG.model_copy(update={"policy": "goose"}))
    first = run.measure(PROMPTS)
    assert first.by_source["transitions"].accepted > 0
    assert run.measure(PROMPTS) == first


def test_long_prompts_are_cut_and_counted() -> None:
    long = PromptFile("long", (Dialogue("d", prompt="x" * 600),))
    result = make_run(make_parts()).measure(long)
    assert (result.num_cut, result.total.tokens, result.exact) == (1, 40, True)


class Recorder:
    """A reference that says of every prompt the same, and remembers what it was asked."""

    fingerprint = "recorder"

    def __init__(self, answer: TokenIds) -> None:
        self.answer = answer
        self.asked: list[TokenIds] = []

    def generate(self, prompts: Sequence[TokenIds], max_tokens: int, on_reply: Callable[[int, TokenIds], None]) -> None:
        self.asked += prompts
        for index in range(len(prompts)):
            on_reply(index, self.answer)


def test_a_reply_that_differs_is_named() -> None:
    result = make_run(make_parts(), store(Recorder((1, 2, 3)))).measure(PROMPTS)
    assert not result.exact
    assert result.inexact == tuple(f"d{i}#0" for i in range(5))


def test_references_are_decoded_once() -> None:
    recorder = Recorder((7, 8))
    first, second = store(recorder), store(recorder)
    prompts = [(1, 2), (3, 4), (1, 2)]
    assert first.token_ids(prompts, 10) == {(1, 2): (7, 8), (3, 4): (7, 8)}
    assert second.token_ids([*prompts, (5, 6)], 10)[5, 6] == (7, 8)
    assert recorder.asked == [(1, 2), (3, 4), (5, 6)]


@pytest.mark.parametrize(
    ("weights", "dtype", "max_tokens"),
    [("other", torch.float32, 10), ("w", torch.bfloat16, 10), ("w", torch.float32, 11)],
)
def test_references_of_other_weights_dtype_or_length_are_not_used(
    weights: str, dtype: torch.dtype, max_tokens: int
) -> None:
    recorder = Recorder((7, 8))
    store(recorder).token_ids([(1, 2)], 10)
    ReferenceStore(recorder, weights=weights, dtype=dtype).token_ids([(1, 2)], max_tokens)
    assert len(recorder.asked) == 2


def test_progress_counts_replies_and_references_kept_or_not() -> None:
    run, calls = make_run(make_parts()), []
    run.measure(PROMPTS, lambda: calls.append(1))
    assert len(calls) == 10
    run.measure(PROMPTS, lambda: calls.append(1))
    assert len(calls) == 20


@pytest.mark.parametrize(
    ("prompt", "reply", "share"),
    [
        ([], [1, 2, 3, 4, 5], 0.0),
        ([1, 2, 3, 4], [1, 2, 3, 4], 1.0),
        ([], [1, 2, 3, 4, 1, 2, 3, 4], 0.2),
        ([1, 2, 3, 4], [1, 2, 3], 0.0),
        ([9, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6], 2 / 3),
        ([], [5] * 8, 0.8),
    ],
)
def test_copy_share(prompt: list[int], reply: list[int], share: float) -> None:
    assert copy_share(prompt, reply) == pytest.approx(share)


def benchmark(name: str, tokens: int, steps: int) -> BenchmarkTau:
    return BenchmarkTau(
        name=name,
        total=Part(1, tokens, steps),
        natural=Part(1, tokens, steps),
        repetitive=Part(0, 0, 0),
        nodes_per_step=3.0,
        by_source={},
        num_cut=0,
        inexact=(),
    )


def test_macro_tau_weighs_benchmarks_alike() -> None:
    assert macro_tau([benchmark("a", 10, 5), benchmark("b", 400, 100)]) == 3.0
    assert macro_tau([]) is None


def test_natural_and_repetitive_replies_have_means_of_their_own() -> None:
    both = replace(benchmark("a", 30, 10), natural=Part(1, 10, 5), repetitive=Part(1, 20, 5))
    natural = replace(benchmark("b", 10, 10), natural=Part(1, 10, 10), repetitive=Part(0, 0, 0))
    assert macro_tau([both, natural], "natural") == 1.5
    assert macro_tau([both, natural], "repetitive") == 4.0, "the mean over benchmarks that have such replies"
    assert macro_tau([natural], "repetitive") is None
    row = tau_json("chain", 16, [both, natural])
    assert (row["macro_tau"], row["macro_tau_natural"], row["macro_tau_repetitive"]) == (2.0, 1.5, 4.0)
    assert tau_table("chain", 16, [both, natural]).splitlines()[-1].split() == ["mean", "2.00", "1.50", "4.00"]


def test_sessions_stand_apart_from_the_mean() -> None:
    results = [benchmark("support_sessions", 100, 10), benchmark("a", 10, 5)]
    row = tau_json("chain", 16, results)
    assert (row["macro_tau"], row["sessions"]) == (2.0, ["support_sessions"])
    assert row["benchmarks"]["support_sessions"]["tau"] == 10.0
    lines = tau_table("chain", 16, results).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["a", "mean", "sessions,", "support_sessions"]
    alone = tau_json("chain", 16, results[:1])
    assert (alone["macro_tau"], alone["sessions"]) == (10.0, [])


def test_json_has_the_documented_fields() -> None:
    run = make_run(make_parts())
    row = tau_json("chain", 16, [run.measure(PROMPTS)])
    assert json.loads(json.dumps(row)) == row
    assert set(row) == {
        "policy",
        "budget",
        "macro_tau",
        "macro_tau_natural",
        "macro_tau_repetitive",
        "sessions",
        "benchmarks",
    }
    fields = row["benchmarks"]["fake"]
    assert set(fields) >= {"tau", "tokens", "steps", "nodes_per_step", "accepted_by_source", "exact"}
    assert row["macro_tau"] == fields["tau"] == round(fields["tokens"] / fields["steps"], 4)
    assert fields["accepted_by_source"] == {"context": fields["tokens"] - fields["steps"]}


def test_table_names_what_is_not_exact() -> None:
    run = make_run(make_parts(), store(Recorder(())))
    table = tau_table("chain", 16, [run.measure(PROMPTS)])
    assert "no: d0#0" in table
    assert table.splitlines()[-1].startswith("mean")
