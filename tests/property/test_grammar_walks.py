"""Random grammars and random trees: masks and places are those of a fresh matcher, whatever was walked before."""

import json
import re
from random import Random

import numpy as np
import pytest
from fakes import EOS, FakeTokenizer
from hypothesis import given
from hypothesis import strategies as st

from goose.tree import TokenTree
from goose_ray.engine.grammar import GrammarState, Place
from goose_ray.engine.grammar_compiler import GrammarCompiler
from goose_ray.engine.grammar_trees import constrain
from goose_ray.engine.structured import StructuredOutput

# Some take the parser over several of its places at once.
_PIECES = [
    "ab",
    "abc",
    "bc",
    "cab",
    " a",
    '":',
    '",',
    "1,",
    '{"',
    ' "',
    '["',
    '":"',
    '","',
    '"}',
    '},{"',
    '": {"',
    '":{"',
    '":["',
    "name",
    ' ["',
    ' {"',
]
_FORCED = 8
_VOCAB_SIZE = 256 + len(_PIECES)
_COMPILER = GrammarCompiler(FakeTokenizer(_PIECES, specials=(EOS,)), vocab_size=_VOCAB_SIZE, eos_token_ids=(EOS,))
_TOKENIZER = FakeTokenizer(_PIECES, specials=(EOS,))

_atoms = st.sampled_from(["a", "b", "ab", "c", "[abc]", " ", "é"])
_regexes = st.recursive(
    _atoms,
    lambda inner: st.one_of(
        st.builds("{}{}".format, inner, inner),
        st.builds("({}|{})".format, inner, inner),
        st.builds("({}){}".format, inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}"])),
    ),
    max_leaves=8,
)
_SHAPES = [
    StructuredOutput("json_object"),
    StructuredOutput("json_schema", '{"type": "array", "items": {"type": "object"}}'),
    # forced bytes before what tells branches apart
    StructuredOutput("json_schema", '{"type": "object", "properties": {"name": {}}, "required": ["name"]}'),
    StructuredOutput(
        "grammar", 'start: (PAIR | LIST) ("," (PAIR | LIST))*\nPAIR: "{\\"" /[abc]*/ "\\":"\nLIST: "[" /[abc1]*/'
    ),
]
_choices = st.lists(st.text(st.sampled_from('abc "\\\n\té😀\x01'), min_size=1, max_size=8), min_size=1, max_size=5)


def _is_allowed(mask: np.ndarray, token: int) -> bool:
    return bool(int(mask[token >> 5]) >> (token & 31) & 1)


def _tree(random: Random, state: GrammarState) -> TokenTree:
    """Some of what may follow the anchor, and anything."""
    likely = [token for token in range(_VOCAB_SIZE) if _is_allowed(state.mask, token)] + list(b"abc \xc3\xa9")
    likely += 8 * list(range(256, _VOCAB_SIZE))
    num_nodes = random.randint(1, 16)
    parents = [-1, *(random.randrange(max(0, node - 3), node) for node in range(1, num_nodes))]
    return TokenTree.from_parents([7, *random.choices(likely, k=num_nodes - 1)], parents)


@given(regex=_regexes, seed=st.integers(0, 2**16))
def test_a_walk_leaves_no_trace(regex: str, seed: int) -> None:
    place, text = _walked(StructuredOutput("regex", f"a?({regex})b"), Random(seed))
    if place is Place.COMPLETE:
        assert re.fullmatch(f"a?({regex})b", text)


@pytest.mark.parametrize("structured", _SHAPES, ids=lambda structured: structured.kind)
@given(seed=st.integers(0, 2**16))
def test_a_walk_over_a_parser_s_places_leaves_no_trace(structured: StructuredOutput, seed: int) -> None:
    _walked(structured, Random(seed))


def _walked(structured: StructuredOutput, random: Random) -> tuple[Place, str]:
    """Where random tokens lead to, and their text. Before each a random tree is looked at."""
    state = GrammarState(_COMPILER.compile(structured))
    committed: list[int] = []
    for _ in range(12):
        tree = _tree(random, state)
        bit = random.choice([0, _FORCED])
        result = constrain(
            state, tree, max_depth=9, max_draft_nodes=random.choice([3, 99]), forced_bit=bit, patience_s=9.0
        )
        kept = result.tree
        for node in range(kept.num_nodes):
            fresh = GrammarState(state.grammar)
            path = [*committed, *kept.token_ids[kept.path_to(node)].tolist()]
            if path:
                fresh.advance(path)
            assert fresh.place is Place.OPEN
            assert np.array_equal(fresh.mask, result.masks[node])
        for node in range(1, kept.num_nodes):
            # What is there was allowed, and was proposed if it is not forced.
            assert _is_allowed(result.masks[kept.parents[node]], int(kept.token_ids[node]))
        options = [token for token in range(_VOCAB_SIZE) if _is_allowed(state.mask, token)]
        pieces = [token for token in options if token >= 256]
        committed.append(random.choice(pieces if pieces and random.random() < 0.7 else options))
        state.advance(committed[-1:])
        if state.place is not Place.OPEN:
            break
    return state.place, _TOKENIZER.decode(committed)


@given(choices=_choices, seed=st.integers(0, 2**16))
def test_choices_are_taken_to_the_letter(choices: list[str], seed: int) -> None:
    random = Random(seed)
    state = GrammarState(_COMPILER.compile(StructuredOutput("choice", json.dumps(choices))))
    committed: list[int] = []
    while state.place is Place.OPEN:
        committed.append(random.choice([t for t in range(_VOCAB_SIZE) if _is_allowed(state.mask, t)]))
        state.advance(committed[-1:])
    assert state.place is Place.COMPLETE
    assert _TOKENIZER.decode(committed) in choices


@pytest.mark.parametrize("seed", range(3))
def test_any_json_that_a_schema_allows_can_be_read(seed: int) -> None:
    random = Random(seed)
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "integer"}, "maxItems": 3}, "b": {"enum": ["x", None]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    for _ in range(20):
        state = GrammarState(_COMPILER.compile(StructuredOutput("json_schema", json.dumps(schema))))
        committed: list[int] = []
        while state.place is Place.OPEN:
            options = [token for token in range(_VOCAB_SIZE) if _is_allowed(state.mask, token)]
            # Blanks and digits can go on for long.
            ends = [token for token in options if token in tuple(b'}],"')] if len(committed) > 40 else []
            committed.append(random.choice(ends or options))
            state.advance(committed[-1:])
        read = json.loads(_TOKENIZER.decode(committed))
        assert read.keys() == {"a", "b"}
        assert all(isinstance(number, int) for number in read["a"])
        assert read["b"] in ("x", None)


@pytest.mark.parametrize(
    ("structured", "committed", "drafted", "next_piece"),
    [
        (StructuredOutput("json_object"), b'{"a":', '{"', ' "'),
        (StructuredOutput("json_object"), b'{"a":', ' "', '{"'),
        # behind the anchor a byte is forced
        (StructuredOutput("grammar", 'start: "=" (" [" S "]" ";" | " (" S "]" ",")\nS: /[a-z]*/'), b"=", " [", " ("),
        (StructuredOutput("grammar", 'start: "=" (" [" S "]" ";" | " (" S "]" ",")\nS: /[a-z]*/'), b"=", " (", " ["),
    ],
)
def test_what_follows_is_not_what_would_have_followed_a_draft(
    structured: StructuredOutput, committed: bytes, drafted: str, next_piece: str
) -> None:
    """Of tokens alike in length, behind which a string is open."""
    pieces = ['{"', ' "', " [", " (", "];", "],", '":', '",']
    compiler = GrammarCompiler(FakeTokenizer(pieces, specials=(EOS,)), vocab_size=264, eos_token_ids=(EOS,))
    walked, fresh = (GrammarState(compiler.compile(structured)) for _ in range(2))
    token_ids = list(committed)
    walked.advance(token_ids)
    tree = TokenTree.chain(token_ids[-1], [256 + pieces.index(drafted)], source=1)
    assert (
        constrain(walked, tree, max_depth=9, max_draft_nodes=9, forced_bit=0, patience_s=9.0).tree.num_draft_nodes == 1
    )
    walked.advance([256 + pieces.index(next_piece)])
    fresh.advance([*token_ids, 256 + pieces.index(next_piece)])
    assert np.array_equal(walked.mask, fresh.mask)
