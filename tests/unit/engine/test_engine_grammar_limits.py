"""What a grammar may cost, and whose fault it is when a limit is met."""

import asyncio
import json
import threading
from random import Random

import numpy as np
import pytest
from fakes import EOS, FakeTokenizer

from goose.tree import TokenTree
from goose_ray.engine import grammar_compiler
from goose_ray.engine.grammar import GrammarState, Place
from goose_ray.engine.grammar_compiler import GrammarCompiler
from goose_ray.engine.grammar_trees import constrain
from goose_ray.engine.grammar_workers import GrammarWorkers
from goose_ray.engine.structured import StructuredKind, StructuredOutput
from goose_ray.errors import InvalidRequestError

WORDS = StructuredOutput("regex", r"([a-z]+[ ,.]?){1,60}")


def new_compiler() -> GrammarCompiler:
    return GrammarCompiler(FakeTokenizer(specials=(EOS,)), vocab_size=257, eos_token_ids=(EOS,))


def integers(**divisors: float) -> str:
    return json.dumps({"type": "object", "properties": {name: {"multipleOf": one} for name, one in divisors.items()}})


def all_of(*divisors: float) -> str:
    return json.dumps({"allOf": [{"type": "number", "multipleOf": one} for one in divisors]})


@pytest.mark.parametrize(
    ("kind", "spec", "said"),
    [
        ("json_schema", integers(a=99999989), "at most 20000, its decimal point left out, not 99999989"),
        ("json_schema", integers(a=-99999989), "not 99999989"),
        ("json_schema", integers(a=0.99999989), "not 0.99999989"),
        ("json_schema", integers(a=1e80), "60 digits"),
        ("json_schema", integers(a=1e-80), "60 digits"),
        ("json_schema", all_of(97, 89, 83, 79), "least common multiple of all must be at most 20000"),
        ("json_schema", all_of(0.97, 8.9, 0.083), "least common multiple"),
        ("grammar", 'start: "x" %json {"type": "integer", "multiple\\u004ff": 99999989}', "at most 20000"),
        ("grammar", 'start: "x" %json // why\n {"multipleOf": 99999989}', "at most 20000"),
    ],
)
def test_divisors_that_would_take_minutes_are_refused(kind: StructuredKind, spec: str, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        new_compiler().compile(StructuredOutput(kind, spec))


@pytest.mark.parametrize(
    "spec",
    [
        integers(a=0.01, b=1000, c=12),
        integers(a=97, b=89, c=83, d=79),
        all_of(5, 10, 0.25),
        all_of(7, 12),
        integers(a=1e-7),
    ],
)
def test_divisors_that_people_ask_for_are_taken(spec: str) -> None:
    assert new_compiler().compile(StructuredOutput("json_schema", spec))


def test_a_text_is_not_ended_by_what_others_have_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text goes through a grammar of all texts, which fills up, as through one of its own, which does not."""
    monkeypatch.setattr(grammar_compiler, "_MAX_LEXER_STATES", 250)
    random = Random(1)
    texts = [
        b"".join(
            bytes(random.choices(b"abcxyz", k=random.randint(1, 4))) + random.choice([b" ", b",", b"."])
            for _ in range(15)
        )
        for _ in range(12)
    ]
    compiler = new_compiler()
    shared = compiler.compile(WORDS)
    for text in texts:
        state, alone = GrammarState(shared), GrammarState(new_compiler().compile(WORDS))
        for token in text:
            drafts = TokenTree.from_parents([token, *b"ab ,cz"], [-1, 0, 1, 2, 0, 4, 5])
            constrain(state, drafts, max_depth=9, max_draft_nodes=9, forced_bit=0)
            state.advance([token])
            alone.advance([token])
            assert state.place is alone.place is Place.OPEN, state.problem
            assert state.has_all == alone.has_all
            assert np.array_equal(state.mask, alone.mask)
    assert shared.is_spoiled, "the limit was never met"
    assert compiler.compile(WORDS) is not shared


def test_a_text_that_meets_the_limit_alone_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_compiler, "_MAX_LEXER_STATES", 60)
    state = GrammarState(new_compiler().compile(WORDS))
    for token in b"many words that none of them is like any other of those and " * 3:
        state.advance([token])
        if state.place is not Place.OPEN:
            break
    assert state.place is Place.STUCK
    assert state.problem is not None
    assert "too many states" in state.problem


def test_a_grammar_that_is_known_waits_for_none_that_is_being_compiled() -> None:
    compiler = new_compiler()
    known = compiler.compile(WORDS)
    workers = GrammarWorkers(compiler)
    release = threading.Event()
    try:
        busy = [workers._threads.submit(release.wait) for _ in range(2)]
        assert asyncio.run(asyncio.wait_for(workers.compiled(WORDS), 60)) is known
        assert not any(one.done() for one in busy)
    finally:
        release.set()
        workers.stop()
