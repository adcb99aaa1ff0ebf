"""GBNF without recursion allows the texts that a regular expression of the same parts matches, and no others."""

import re
from typing import NamedTuple

from fakes import EOS, FakeTokenizer
from hypothesis import given
from hypothesis import strategies as st

from goose_ray.engine.grammar import GrammarState, Place
from goose_ray.engine.grammar_compiler import GrammarCompiler
from goose_ray.engine.structured import StructuredOutput
from goose_ray.errors import InvalidRequestError

COMPILER = GrammarCompiler(FakeTokenizer(specials=(EOS,)), vocab_size=257, eos_token_ids=(EOS,))
CHARACTERS = "ab-&~]^\\"


class Both(NamedTuple):
    """The same in both languages."""

    gbnf: str
    regex: str


def _literal(text: str) -> Both:
    return Both('"' + text.replace("\\", "\\\\") + '"', re.escape(text))


def _set(negated: bool, characters: list[str]) -> Both:
    sign = "^" if negated else ""
    hexed = "".join(f"\\x{ord(character):02x}" for character in characters)
    # what means something in a regular expression, and nothing here
    return Both(f"[{sign}{hexed}{'&&' if '&' in characters else ''}]", f"[{sign}{hexed}]")


def _both(first: Both, second: Both) -> Both:
    return _group([Both(f"{first.gbnf} {second.gbnf}", first.regex + second.regex)])


def _group(alternatives: list[Both]) -> Both:
    return Both(
        "(" + " | ".join(one.gbnf for one in alternatives) + ")",
        "(?:" + "|".join(one.regex for one in alternatives) + ")",
    )


_atoms = st.one_of(
    st.text(st.sampled_from(CHARACTERS), min_size=1, max_size=2).map(_literal),
    st.builds(_set, st.booleans(), st.lists(st.sampled_from(CHARACTERS), min_size=1, max_size=3)),
)
_bodies = st.recursive(
    _atoms,
    lambda inner: st.one_of(
        st.builds(_both, inner, inner),
        st.lists(inner, min_size=1, max_size=3).map(_group),
        st.builds(
            lambda one, times: Both(f"({one.gbnf}){times}", f"(?:{one.regex}){times}"),
            inner,
            st.sampled_from(["*", "+", "?", "{0}", "{2}", "{1,2}"]),
        ),
    ),
    max_leaves=6,
)


@given(first=_bodies, second=_bodies, texts=st.lists(st.text(st.sampled_from(CHARACTERS), max_size=6), max_size=12))
def test_texts(first: Both, second: Both, texts: list[str]) -> None:
    spec = f"root ::= {first.gbnf} other-one\nother-one ::= {second.gbnf} | other-one-b\nother-one-b ::= {first.gbnf}\n"
    regex = re.compile(f"(?:{first.regex})(?:{second.regex}|{first.regex})", re.DOTALL)
    texts = [*filter(None, texts)]
    try:
        grammar = COMPILER.compile(StructuredOutput("grammar", spec))
    except InvalidRequestError:
        assert not any(map(regex.fullmatch, texts))
        return
    for text in texts:
        state = GrammarState(grammar)
        taken = 0
        for byte in text.encode():
            if state.place is not Place.OPEN:
                break
            state.advance([byte])
            taken += state.has_all
        whole = taken == len(text.encode())
        ends = state.place is Place.COMPLETE or (state.place is Place.OPEN and bool(state.matcher.is_accepting()))
        assert (whole and ends) == bool(regex.fullmatch(text)), (spec, text)
