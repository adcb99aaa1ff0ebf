"""What a grammar may cost, and whose fault it is when a limit is met."""

import asyncio
import threading
from random import Random

import numpy as np
import pytest
from fakes import EOS, FakeTokenizer
from llguidance import LLParserLimits

from goose.tree import TokenTree
from goose_ray.engine import grammar_compiler, grammar_workers
from goose_ray.engine.grammar import GrammarState, Place
from goose_ray.engine.grammar_compiler import GrammarCompiler
from goose_ray.engine.grammar_trees import constrain
from goose_ray.engine.grammar_workers import GrammarWorkers
from goose_ray.engine.structured import StructuredKind, StructuredOutput
from goose_ray.errors import OverloadedError

WORDS = StructuredOutput("regex", r"([a-z]+[ ,.]?){1,60}")

# what ends a number is what it may go on with
ZEROS = (
    '{"type": "array", "minItems": 2, "items": {"type": "number", "maximum": 2},'
    ' "x-guidance": {"whitespace_flexible": false, "item_separator": "0"}}'
)


def new_compiler() -> GrammarCompiler:
    return GrammarCompiler(FakeTokenizer(specials=(EOS,)), vocab_size=257, eos_token_ids=(EOS,))


def test_drafts_are_looked_at_no_longer_than_a_batch_may_wait() -> None:
    state = GrammarState(new_compiler().compile(WORDS))
    state.advance(list(b"so"))
    drafts = TokenTree.from_parents(list(b"oabcd"), [-1, 0, 1, 2, 3])

    def num_drafts(patience_s: float) -> int:
        result = constrain(state, drafts, max_depth=9, max_draft_nodes=9, forced_bit=0, patience_s=patience_s)
        assert np.array_equal(result.masks[0], state.mask)
        return result.tree.num_draft_nodes

    assert [num_drafts(patience_s) for patience_s in (9.0, 0.0)] == [4, 0]
    # what the last mask of the committed tokens took
    state.mask_s = 0.5
    assert num_drafts(9.0) == 0
    state.advance(list(b"me"))
    assert num_drafts(9.0) == 4


@pytest.mark.parametrize(
    ("kind", "spec", "text"),
    [
        ("grammar", 'root ::= w "a"\nw ::= [a]*', "aaaaaaaa"),
        ("grammar", 'start: "x" /a*/ "a"', "xaaaaaaa"),
        ("grammar", 'start: "[" %json {"type": "null"} /b+/ "b"', "[nullbbbb"),
        ("json_schema", '{"enum": [[1, 2]], "x-guidance": {"whitespace_pattern": ";*", "item_separator": ";"}}', "[1;"),
        ("json_schema", ZEROS, "[2.0"),
        ("json_schema", '{"const": [["a"]], "x-guidance": {"whitespace_pattern": "[]]*"}}', '[["a"'),
    ],
)
def test_what_swallows_its_own_end_is_no_loop(kind: StructuredKind, spec: str, text: str) -> None:
    """The library would look for bytes that must come, find the same one without end, and hold the whole batch up."""
    state = GrammarState(new_compiler().compile(StructuredOutput(kind, spec)))

    def go() -> None:
        for byte in text.encode():
            state.advance([byte])
            tree = TokenTree.from_parents([byte, byte, byte], [-1, 0, 1])
            constrain(state, tree, max_depth=9, max_draft_nodes=9, forced_bit=8, patience_s=9.0)

    # one that does not end cannot be ended
    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert state.has_all
    assert state.place is Place.OPEN


def test_large_grammars_are_kept_until_others_come(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = new_compiler()
    specs = [StructuredOutput("regex", f"[a-z]{{{n}}}") for n in range(1, 5)]
    for spec in specs:
        compiler.compile(spec).compile_s = 1.5
    assert [compiler.known(spec) is not None for spec in specs] == [False, True, True, True]
    monkeypatch.setattr(grammar_compiler, "_MAX_KEPT_S", 0.0)
    compiler.compile(WORDS)
    assert [compiler.known(spec) is not None for spec in (*specs, WORDS)] == [False] * 4 + [True]


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
            constrain(state, drafts, max_depth=9, max_draft_nodes=9, forced_bit=0, patience_s=9.0)
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


def test_who_waits_for_the_compilers_of_others_is_not_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_workers, "_TIMEOUT_S", 0.05)
    workers = GrammarWorkers(new_compiler())
    release = threading.Event()
    try:
        for _ in range(2):
            workers._threads.submit(release.wait)
        with pytest.raises(OverloadedError, match="try again later"):
            asyncio.run(workers.compiled(WORDS))
    finally:
        release.set()
        workers.stop()


def test_nor_is_who_asks_a_machine_that_is_too_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_workers, "_TIMEOUT_S", 0.05)
    compiler, release = new_compiler(), threading.Event()
    monkeypatch.setattr(compiler, "compile", lambda structured, trial: release.wait())
    workers = GrammarWorkers(compiler)
    try:
        with pytest.raises(OverloadedError, match="try again later"):
            asyncio.run(workers.compiled(WORDS))
    finally:
        release.set()
        workers.stop()
