"""Shapes of answers behind what a model thinks."""

from dataclasses import replace

import numpy as np
import pytest
from fakes import EOS, FakeTokenizer
from tool_templates import HERMES, tokenizer_with

from goose_ray.engine.grammar import GrammarState, Place
from goose_ray.engine.grammar_compiler import GrammarCompiler
from goose_ray.engine.structured import Preface, StructuredOutput


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(FakeTokenizer(["def"], specials=(EOS,)), vocab_size=257, eos_token_ids=(EOS,))


def allowed(mask: np.ndarray) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


_SHAPES = [
    StructuredOutput("regex", "[0-9]{2}!"),
    StructuredOutput("choice", '["42!"]'),
    StructuredOutput("grammar", 'start: "42" END\nEND: "!"'),
    StructuredOutput("grammar", 'root ::= "42" "!"'),
]


@pytest.mark.parametrize("begin", ["", "<think>"])
@pytest.mark.parametrize("shape", _SHAPES)
def test_a_preface_is_free_up_to_its_end_and_the_shape_follows(
    compiler: GrammarCompiler, shape: StructuredOutput, begin: str
) -> None:
    grammar = compiler.compile(replace(shape, preface=Preface(begin, "</think>")))
    state = GrammarState(grammar)
    state.advance(list(f"{begin}Is it 42? </thin, <think> no.\n".encode()))
    assert EOS not in allowed(state.mask)
    assert allowed(state.mask) >= set(range(1, 128))
    state.advance(list(b"</think>\n\n"))
    assert not allowed(state.mask) & set(b"aA{<")
    state.advance(list(b"42!"))
    assert state.place is Place.COMPLETE
    assert compiler.compile(shape) is not grammar


def test_a_preface_that_may_come_need_not(compiler: GrammarCompiler) -> None:
    state = GrammarState(compiler.compile(replace(_SHAPES[0], preface=Preface("<think>", "</think>"))))
    assert allowed(state.mask) >= set(b"<42 \n")
    assert not allowed(state.mask) & set(b"a{!")
    state.advance(list(b"42!"))
    assert state.place is Place.COMPLETE


def test_white_space_is_no_answer_s_beginning_unless_a_preface_follows(compiler: GrammarCompiler) -> None:
    state = GrammarState(compiler.compile(replace(_SHAPES[0], preface=Preface("<think>", "</think>"))))
    state.advance(list(b"\n"))
    assert not allowed(state.mask) & set(b"0123456789")
    state.advance(list(b"<think>\n</think>\n42!"))
    assert state.place is Place.COMPLETE


@pytest.mark.parametrize("specials", [(), ("<think>", "</think>")])
def test_marks_may_be_tokens_of_their_own(specials: tuple[str, ...]) -> None:
    tokenizer = tokenizer_with(HERMES, specials=specials)
    compiler = GrammarCompiler(tokenizer, vocab_size=tokenizer.vocab_size, eos_token_ids=tokenizer.eos_token_ids)
    state = GrammarState(compiler.compile(replace(_SHAPES[0], preface=Preface("<think>", "</think>"))))
    token_ids = tokenizer.encode("<think>\nWell. </think>\n\n42!")
    assert (tokenizer.special_token_id("</think>") in token_ids) is bool(specials)
    state.advance(token_ids)
    assert state.place is Place.COMPLETE
