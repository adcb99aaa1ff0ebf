"""Grammars: what is refused, where an output is in one, and draft trees cut to what it lets through."""

import json
from typing import Any

import numpy as np
import pytest
from engine_helpers import ScriptedSpeculator, make_engine, make_request, run
from fakes import EOS, FakeTokenizer, looping_model
from tiny_models import tiny_model

from goose.speculator import Speculator
from goose.tree import TokenTree
from goose_ray.config import EngineConfig
from goose_ray.engine.engine import Engine
from goose_ray.engine.grammar import GrammarState, Place
from goose_ray.engine.grammar_compiler import GrammarCompiler
from goose_ray.engine.grammar_trees import ConstrainedTree, constrain
from goose_ray.engine.request import GenerationRequest
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.engine.structured import StructuredKind, StructuredOutput
from goose_ray.errors import InvalidRequestError
from goose_ray.runner.local import LocalRunner

_FORCED = 8


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(FakeTokenizer(["def"], specials=(EOS,)), vocab_size=257, eos_token_ids=(EOS,))


def start(compiler: GrammarCompiler, regex: str) -> GrammarState:
    return GrammarState(compiler.compile(StructuredOutput("regex", regex)))


def allowed(mask: np.ndarray) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def cut(state: GrammarState, tree: TokenTree, *, depth: int = 99, nodes: int = 99, bit: int = 0) -> ConstrainedTree:
    result = constrain(state, tree, max_depth=depth, max_draft_nodes=nodes, forced_bit=bit, patience_s=9.0)
    assert result.masks.shape[0] == result.tree.num_nodes
    assert result.masks.any(axis=1).all()
    return result


@pytest.mark.parametrize(
    ("kind", "spec", "said"),
    [
        ("regex", "(", "unclosed group"),
        ("regex", "(?=a)b", "look-around"),
        ("regex", "", "no text at all"),
        ("regex", "(" * 5000, "no valid regex"),
        ("choice", '[""]', "no text at all"),
        ("grammar", "word", "no valid grammar"),
        ("grammar", 'start: "a', "no valid grammar"),
        ("grammar", 'start: "a" missing', "missing"),
        ("grammar", "root ::= " + "(" * 20000, "no valid grammar"),
        ("json_schema", "[]", "must be a JSON object"),
        ("json_schema", '{"type": "thing"}', "thing"),
        ("json_schema", '{"type": "string", "not": {}}', "not"),
        ("json_schema", '{"$ref": "https://example.org/schema"}', "no valid json_schema"),
        ("json_schema", '{"items":' * 5000, "no valid json_schema"),
        ("json_schema", f'{{"const": "{"x" * 200_000}"}}', "at most"),
    ],
)
def test_what_is_no_specification_is_refused_by_field(
    compiler: GrammarCompiler, kind: StructuredKind, spec: str, said: str
) -> None:
    with pytest.raises(InvalidRequestError, match=said) as refused:
        compiler.compile(StructuredOutput(kind, spec, "field.name"))
    assert refused.value.param == "field.name"


def test_a_grammar_is_compiled_once_whatever_field_it_came_in(compiler: GrammarCompiler) -> None:
    first = compiler.compile(StructuredOutput("regex", "once", "guided_regex"))
    assert compiler.compile(StructuredOutput("regex", "once")) is first
    assert compiler.compile(StructuredOutput("choice", '["once"]')) is not first


def test_thousands_of_choices(compiler: GrammarCompiler) -> None:
    spec = json.dumps([f"choice {number}" for number in range(6000)])
    state = GrammarState(compiler.compile(StructuredOutput("choice", spec)))
    state.advance(list(b"choice 5999"))
    assert state.place is Place.COMPLETE


def test_only_the_grammars_used_last_are_kept(compiler: GrammarCompiler) -> None:
    often = compiler.compile(StructuredOutput("regex", "often"))
    for number in range(100):
        compiler.compile(StructuredOutput("regex", f"x{number}"))
        assert compiler.compile(StructuredOutput("regex", "often")) is often


def test_masks_say_what_may_follow_and_where_it_may_end(compiler: GrammarCompiler) -> None:
    state = start(compiler, "ab+|[d]ef+")
    assert allowed(state.mask) == {ord("a"), ord("d"), 256}
    state.advance([ord("a"), ord("b")])
    assert allowed(state.mask) == {ord("b"), EOS}
    state.advance([EOS])
    assert state.place is Place.COMPLETE


def test_a_finished_grammar_is_complete_without_an_end_token(compiler: GrammarCompiler) -> None:
    state = start(compiler, "abc")
    state.advance([ord("a"), ord("b")])
    assert (state.place, state.grammar.forced(state.mask)) == (Place.OPEN, ord("c"))
    state.advance([ord("c")])
    assert state.place is Place.COMPLETE


def test_a_model_without_an_end_token() -> None:
    compiler = GrammarCompiler(FakeTokenizer(), vocab_size=300, eos_token_ids=())
    state = start(compiler, "a+")
    state.advance([ord("a")])
    assert allowed(state.mask) == {ord("a")}


class _Unreadable(FakeTokenizer):
    """Of words, without bytes to fall back on."""

    @property
    def definition(self) -> str:
        return json.dumps({"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": {"a": 0}}})


def test_a_tokenizer_that_grammars_cannot_be_had_for() -> None:
    compiler = GrammarCompiler(_Unreadable(), vocab_size=300, eos_token_ids=())
    compiler.prepare()
    with pytest.raises(InvalidRequestError, match="tokenizer") as refused:
        compiler.compile(StructuredOutput("regex", "a", "structured_outputs.regex"))
    assert (refused.value.param, refused.value.code) == ("structured_outputs.regex", "unsupported_parameter")


def test_a_text_that_the_model_has_no_tokens_for() -> None:
    """Here of bytes above 127."""
    compiler = GrammarCompiler(FakeTokenizer(specials=(EOS,)), vocab_size=128, eos_token_ids=(EOS,))
    with pytest.raises(InvalidRequestError, match="no text at all"):
        compiler.compile(StructuredOutput("regex", "é"))
    grammar = compiler.compile(StructuredOutput("regex", "[ab]é"))
    state = GrammarState(grammar)
    state.advance([ord("a")])
    assert (state.place, state.problem) == (Place.STUCK, "no token of the model can follow")
    # Whoever comes next gets one that has not failed.
    assert compiler.compile(StructuredOutput("regex", "[ab]é")) is not grammar


def test_a_stuck_request_ends_alone_and_says_why() -> None:
    model = looping_model()
    engine = make_engine(model, ScriptedSpeculator(model, length=0))
    stuck = SamplingParams(max_tokens=9, temperature=0.0, structured=StructuredOutput("regex", "(\x01|\x02)z", "f"))
    engine.add_request(GenerationRequest(request_id="stuck", prompt_token_ids=(1, 2), sampling=stuck))
    assert engine.spec.vocab_size <= ord("z")
    engine.add_request(make_request("free", max_tokens=5))
    outputs = [output for _ in range(9) for output in engine.step()]
    (last,) = [output for output in outputs if output.request_id == "stuck" and output.finish_reason]
    assert last.finish_reason == "abort"
    assert last.error is not None
    assert (last.error.param, last.error.status) == ("f", 400)
    assert [output.finish_reason for output in outputs if output.request_id == "free"][-1] == "length"
    engine.check_integrity()
    assert engine.stats().kv_slots_used == 0
    assert run(engine, make_request("after", max_tokens=3))["after"].finish_reason == "length"


@pytest.mark.parametrize("max_tokens", [1, 9])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_shape_that_other_fields_rule_out(temperature: float, max_tokens: int) -> None:
    """Nothing is left to choose from: an error of that request, whatever was drawn from nothing."""
    runner = LocalRunner(tiny_model("llama"), model_id="tiny", num_slots=64)
    engine = Engine(runner, Speculator(policy="goose"), FakeTokenizer(), EngineConfig(policy="goose", budget=8))
    sampling = SamplingParams(
        temperature=temperature,
        max_tokens=max_tokens,
        top_p=0.9,
        allowed_token_ids=(ord("x"),),
        structured=StructuredOutput("regex", "[ab]+", "structured_outputs.regex"),
    )
    reply = run(engine, GenerationRequest(request_id="r", prompt_token_ids=(1, 2), sampling=sampling))["r"]
    assert (reply.text, reply.token_ids, reply.finish_reason) == ("", [], "abort")
    assert reply.last is not None
    assert reply.last.error is not None
    assert reply.last.error.param == "structured_outputs.regex"


@pytest.mark.parametrize(("policy", "temperature"), [("goose", 0.0), ("goose", 0.9), ("autoregressive", 0.9)])
@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        (
            {"allowed_token_ids": (7,), "bad_word_ids": ((7, 7, 7),)},
            "allowed_token_ids",
            "allowed_token_ids and bad_words must leave a token to choose, and leave none after 2 tokens of output",
        ),
        (
            {"bad_word_ids": ((ord("b"),),), "structured": StructuredOutput("regex", "aab", "f")},
            "f",
            "f: no token that fits it is left by bad_words after 2 tokens of output",
        ),
        (
            {"min_tokens": 3, "stop_token_ids": (ord("b"),), "structured": StructuredOutput("regex", "aab+", "f")},
            "f",
            "f: no token that fits it is left by min_tokens after 2 tokens of output",
        ),
        (
            {"allowed_token_ids": (0, 9), "structured": StructuredOutput("choice", '["yes"]', "f")},
            "f",
            "f: no token that fits it is left by allowed_token_ids as the output's first",
        ),
        (
            {"bad_word_ids": ((ord("y"),),), "structured": StructuredOutput("choice", '["yes"]', "f")},
            "f",
            "f: no token that fits it is left by bad_words as the output's first",
        ),
    ],
)
def test_a_request_whose_rules_leave_nothing_ends_alone(
    fields: dict[str, Any], param: str, message: str, policy: str, temperature: float
) -> None:
    """Also where bans meet only later on; whoever shares the batch gets what it would have got alone."""

    def engine() -> Engine:
        runner = LocalRunner(tiny_model("llama"), model_id="tiny", num_slots=64)
        return Engine(runner, Speculator(policy=policy), FakeTokenizer(), EngineConfig(policy=policy, budget=8))

    def request(name: str, **fields: Any) -> GenerationRequest:
        sampling = SamplingParams(max_tokens=9, temperature=temperature, seed=3, **fields)
        return GenerationRequest(request_id=name, prompt_token_ids=(1, 2), sampling=sampling)

    alone = run(engine(), request("other", top_p=0.9))["other"]
    shared = engine()
    replies = run(shared, request("ruled", top_p=0.9, **fields), request("other", top_p=0.9))
    assert replies["other"].visible == alone.visible
    assert replies["ruled"].finish_reason == "abort"
    last = replies["ruled"].last
    assert last is not None
    assert last.error is not None
    assert (last.error.param, last.error.message) == (param, message)
    shared.check_integrity()


def test_what_ended_before_nothing_was_left_is_well() -> None:
    runner = LocalRunner(tiny_model("llama"), model_id="tiny", num_slots=64)
    engine = Engine(runner, Speculator(policy="goose"), FakeTokenizer(), EngineConfig(policy="goose", budget=8))
    sampling = SamplingParams(max_tokens=2, temperature=0.0, allowed_token_ids=(7,), bad_word_ids=((7, 7, 7),))
    reply = run(engine, GenerationRequest(request_id="r", prompt_token_ids=(1, 2), sampling=sampling))["r"]
    assert (reply.token_ids, reply.finish_reason) == ([7, 7], "length")


def test_forbidden_nodes_and_all_below_them_are_dropped(compiler: GrammarCompiler) -> None:
    a, b, c = b"abc"
    tree = TokenTree.from_parents([7, b, a, c, b, a, a], [-1, 0, 0, 1, 2, 2, 4], sources=[0, 1, 2, 1, 4, 4, 4])
    result = cut(start(compiler, "a[bc]a+c"), tree)
    assert result.tree.token_ids.tolist() == [7, a, b, a]
    assert result.tree.parents.tolist() == [-1, 0, 1, 2]
    assert result.tree.depths.tolist() == [0, 1, 2, 3]
    assert result.tree.sources.tolist() == [0, 2, 4, 4]
    assert [allowed(mask) for mask in result.masks] == [{a}, {b, c}, {a}, {a, c}]


def test_nothing_is_verified_behind_the_end(compiler: GrammarCompiler) -> None:
    a, b = b"ab"
    chain = TokenTree.chain(7, [a, b, a, b], source=1)
    assert cut(start(compiler, "ab"), chain).tree.token_ids.tolist() == [7, a]
    ended = TokenTree.chain(7, [a, EOS, a], source=1)
    assert cut(start(compiler, "a+"), ended).tree.token_ids.tolist() == [7, a]


def test_forced_tokens_are_drafted_and_shared_with_what_was_proposed(compiler: GrammarCompiler) -> None:
    text = list(b"abcd")
    state = start(compiler, "abcdX?Y")
    alone = cut(state, TokenTree.anchor_only(7), bit=_FORCED).tree
    assert alone.token_ids.tolist() == [7, *text]
    assert set(alone.sources[1:].tolist()) == {_FORCED}
    both = cut(state, TokenTree.chain(7, [*text[:2], *b"Q"], source=1), bit=_FORCED).tree
    assert both.sources.tolist() == [0, 1 | _FORCED, 1 | _FORCED, _FORCED, _FORCED]
    below = cut(start(compiler, "(Z|W)abcdX?Y"), TokenTree.chain(7, list(b"Z"), source=1), bit=_FORCED).tree
    assert below.token_ids.tolist() == [7, *b"Z", *text]
    assert cut(start(compiler, "(Z|W)abcdX?Y"), TokenTree.chain(7, list(b"Z"), source=1)).tree.num_nodes == 2


def test_trees_stay_within_depth_and_nodes(compiler: GrammarCompiler) -> None:
    state = start(compiler, "a{50}")
    assert cut(state, TokenTree.anchor_only(7), bit=_FORCED, depth=3).tree.num_draft_nodes == 3
    assert cut(state, TokenTree.anchor_only(7), bit=_FORCED, nodes=5).tree.num_draft_nodes == 5
    assert cut(state, TokenTree.anchor_only(7), bit=_FORCED, nodes=0).tree.num_draft_nodes == 0
    wide = TokenTree.from_parents([7, *b"bcb"], [-1, 0, 0, 1], sources=[0, 1, 1, 1], probs=[1, 0.3, 0.6, 0.9])
    assert cut(start(compiler, "[bc]{9}"), wide, nodes=1).tree.token_ids.tolist() == [7, *b"c"]


@pytest.mark.parametrize("length", [0, 8])
@pytest.mark.parametrize(
    ("sampling", "text", "reason", "stop_reason"),
    [
        ({"max_tokens": 4}, "0123", "length", None),
        ({"max_tokens": 7}, "0123456", "stop", None),
        ({"max_tokens": 60}, "0123456", "stop", None),
        ({"max_tokens": 60, "min_tokens": 30}, "0123456", "stop", None),
        ({"max_tokens": 60, "stop": ("34",)}, "012", "stop", "34"),
        ({"max_tokens": 60, "stop": ("34",), "include_stop_str_in_output": True}, "01234", "stop", "34"),
        ({"max_tokens": 60, "stop_token_ids": (0x35,)}, "01234", "stop", 0x35),
        ({"max_tokens": 60, "ignore_eos": True}, "0123456", "stop", None),
        ({"max_tokens": 60, "stop": ("67",)}, "0123456", "stop", None),
    ],
)
def test_endings(
    length: int, sampling: dict[str, object], text: str, reason: str, stop_reason: str | int | None
) -> None:
    """The fake runner knows no masks, so the model says what the grammar asks for, and would go on."""

    def count(history: object, _: SamplingParams, position: int) -> int:
        return 0x30 + position % 10

    engine = make_engine(count, ScriptedSpeculator(count, length=length))
    params = SamplingParams(temperature=0.0, structured=StructuredOutput("regex", "[0-9]{6}6"), **sampling)  # type: ignore[arg-type]
    request = GenerationRequest(request_id="r", prompt_token_ids=(1, 2), sampling=params)
    reply = run(engine, request)["r"]
    assert (reply.text, reply.finish_reason, reply.stop_reason) == (text, reason, stop_reason)
