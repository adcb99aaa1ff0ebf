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
from goose_ray.engine import grammar_compiler, grammar_workers
from goose_ray.engine.grammar import GrammarState, Place
from goose_ray.engine.grammar_compiler import GrammarCompiler
from goose_ray.engine.grammar_trees import constrain
from goose_ray.engine.grammar_workers import GrammarWorkers
from goose_ray.engine.structured import StructuredKind, StructuredOutput
from goose_ray.errors import InvalidRequestError, OverloadedError

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
        ("json_schema", '{"multipleOf": 10001, "minimum": 0}', "at most 10000 beside minimum or maximum, .* not 10001"),
        ("json_schema", '{"maximum": 9e9, "allOf": [{"multipleOf": 86400}]}', "beside minimum or maximum"),
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
        '{"multipleOf": 3600, "minimum": 0, "maximum": 1e12}',
        '{"multipleOf": 0.01, "exclusiveMinimum": 0, "exclusiveMaximum": 1e6}',
    ],
)
def test_divisors_that_people_ask_for_are_taken(spec: str) -> None:
    assert new_compiler().compile(StructuredOutput("json_schema", spec))


def test_a_multiple_in_a_range_can_be_written_to_its_end() -> None:
    spec = '{"type": "integer", "multipleOf": 10000, "minimum": 0, "maximum": 9007199254740992}'
    state = GrammarState(new_compiler().compile(StructuredOutput("json_schema", spec)))
    state.advance(list(b"123456789120000"))
    assert state.place is Place.OPEN, state.problem


@pytest.mark.parametrize(
    "lark",
    [
        "start: A\nA: /.*a.{30}/ & /.*b.{29}/ & ~/.*c.{28}/",
        # behind what looks like the beginning of a text or an expression
        'start: A\nA: /x\n"/ & /y"/',
        'start: A\nA: /"/ & /"/',
        'start: A # "\nA: /a/ & /b/ # "',
        "start: A // /\nA: /a/ & /b/",
        'start: A\nA: "\\"" & "\\""',
        "start: A\nA: /\\// & /\\//",
        'start: A %json {"const": "\\""}\nA: /a/ & /b/ "x"',
        'start: A\nA: ~"a"',
        'start: a\na: ~ "a" ~ 3',
    ],
)
def test_operators_that_would_take_without_end_are_refused(lark: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"the operator [&~] is not supported"):
        new_compiler().compile(StructuredOutput("grammar", lark))


@pytest.mark.parametrize(
    "hidden", ["<\x1c/>", "<\x0b/>", "<\x85/>", "<\xa0/>", "<\u2028/>", '<\x1f">', "< />", '"\r', "/\\\n/"]
)
def test_what_might_hide_one_is_refused(hidden: str) -> None:
    lark = f"start: A\njunk: {hidden}\nA: /.*a.{{30}}/ & /.*b.{{29}}/ & ~/.*c.{{28}}/"
    with pytest.raises(InvalidRequestError, match=r"line 2: .* begins nothing|operator &"):
        new_compiler().compile(StructuredOutput("grammar", lark))


@pytest.mark.parametrize("bound", [{"minProperties": 1}, {"maxProperties": 1}])
def test_properties_are_counted_only_where_there_are_few(bound: dict[str, int]) -> None:
    def compile(num_properties: int) -> None:
        properties = {str(number): True for number in range(num_properties)}
        schema = {"type": "object", "properties": properties, "additionalProperties": False, **bound}
        new_compiler().compile(StructuredOutput("json_schema", json.dumps(schema)))

    compile(100)
    with pytest.raises(InvalidRequestError, match="at most 100 properties in all, not 101"):
        compile(101)


def test_properties_that_may_be_left_out_are_as_many_as_an_answer_can_begin_with() -> None:
    def compiled(num_properties: int, required: list[str]) -> GrammarState:
        properties = {f"p{number}": {"type": "integer"} for number in range(num_properties)}
        schema = {"type": "object", "properties": properties, "required": required}
        return GrammarState(new_compiler().compile(StructuredOutput("json_schema", json.dumps(schema))))

    for state in (compiled(490, []), compiled(491, ["p0"])):
        state.advance(list(b'{"p'))
        assert state.place is Place.OPEN, state.problem
    with pytest.raises(InvalidRequestError, match="at most 490 properties that are not required, not 491"):
        compiled(491, [])


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "&" "~"',
        "start: A\nA: /[&~]/",
        "start: A // a & ~b\nA: /a/ # & ~",
        'start: %json {"const": "a & ~b"}',
        'start: "a" ~ 3 B\nB: "b" ~2..3',
        'root ::= "&" [~&]',
        'start: <[1-2]> "<" /</ | <[3]>',
    ],
)
def test_their_signs_may_be_written(grammar: str) -> None:
    assert new_compiler().compile(StructuredOutput("grammar", grammar))


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


def test_what_takes_long_itself_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_workers, "_TIMEOUT_S", 0.05)
    compiler, release = new_compiler(), threading.Event()
    monkeypatch.setattr(compiler, "compile", lambda structured: release.wait())
    workers = GrammarWorkers(compiler)
    try:
        with pytest.raises(InvalidRequestError, match="takes more than"):
            asyncio.run(workers.compiled(WORDS))
    finally:
        release.set()
        workers.stop()
