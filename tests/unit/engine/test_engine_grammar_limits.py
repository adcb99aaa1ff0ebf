"""What a grammar may cost, and whose fault it is when a limit is met."""

import asyncio
import json
import threading
from random import Random

import numpy as np
import pytest
from fakes import EOS, FakeTokenizer
from llguidance import LLParserLimits

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
        ("json_schema", integers(a=99999989), "at most 100000, its decimal point left out, not 99999989"),
        ("json_schema", integers(a=-99999989), "not 99999989"),
        ("json_schema", integers(a=0.99999989), "not 0.99999989"),
        ("json_schema", integers(a=1e80), "60 digits"),
        ("json_schema", integers(a=1e-80), "60 digits"),
        ("json_schema", integers(**{f"p{n}": 19_999 - n for n in range(6)}), "all together must be at most 100000"),
        ("json_schema", all_of(97, 89, 83, 79), "least common multiple of all must be at most 100000.* not 56606581"),
        ("json_schema", all_of(0.97, 8.9, 0.083), "least common multiple"),
        (
            "json_schema",
            '{"properties": {"ab": {"multipleOf": 1009}}, "patternProperties": {"^a": {"multipleOf": 1013}}}',
            "least common multiple",
        ),
        ("grammar", 'start: "x" %json {"type": "integer", "multiple\\u004ff": 99999989}', "at most 100000"),
        ("grammar", 'start: "%json #" %json {"multipleOf": 99999989}', "at most 100000"),
        ("grammar", 'start: %json {"multipleOf": 60000} | %json {"multipleOf": 60001}', "all together"),
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
        integers(a=1e-7),
        integers(a=86_400),
        all_of(5, 10, 0.25),
        all_of(0.01, 500),
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


def test_tokens_that_come_at_once_are_no_more_than_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of a call is met behind them without the masks that plain decoding has on its way."""
    limits = LLParserLimits(verbose_errors=False, step_lexer_fuel=3000)
    monkeypatch.setattr(grammar_compiler, "_limits", lambda: limits)
    text = list(b"many words that none of them is like any")
    at_once, one_by_one = (GrammarState(new_compiler().compile(WORDS)) for _ in range(2))
    at_once.advance(text)
    for token in text:
        one_by_one.advance([token])
    assert at_once.place is one_by_one.place is Place.OPEN, at_once.problem
    assert np.array_equal(at_once.mask, one_by_one.mask)


def test_a_token_that_may_not_come_is_no_matter_of_limits() -> None:
    compiler = new_compiler()
    grammar = compiler.compile(WORDS)
    state = GrammarState(grammar)
    state.advance(list(b"word!"))
    assert state.place is Place.STUCK
    assert state.grammar is compiler.compile(WORDS) is grammar


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
