"""GBNF in the library's Lark: the texts that it means, and refusals that say what is wrong and where."""

import pytest
from fakes import EOS, FakeTokenizer

from goose_ray.engine.gbnf import is_gbnf
from goose_ray.engine.grammar import GrammarState, Place
from goose_ray.engine.grammar_compiler import GrammarCompiler
from goose_ray.engine.structured import StructuredOutput
from goose_ray.errors import InvalidRequestError

COMPILER = GrammarCompiler(FakeTokenizer(specials=(EOS,)), vocab_size=257, eos_token_ids=(EOS,))
JSON = r"""
# llama.cpp's own, shortened
root   ::= object
value  ::= object | array | string | ("true" | "null") ws
object ::=
  "{" ws ( string ":" ws value
    ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value
  ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
NAMES = """
root ::= start Foo foo foo-Bar 1a
start ::= "s"
Foo ::= "F"
foo ::= "f"
foo-Bar ::= "-"
1a ::= "1"
"""


def takes(spec: str, text: str) -> bool:
    """Whether the text is one that the grammar means, as a whole."""
    state = GrammarState(COMPILER.compile(StructuredOutput("grammar", spec)))
    for byte in text.encode():
        if state.place is not Place.OPEN:
            return False
        state.advance([byte])
        if not state.has_all:
            return False
    return state.place is Place.COMPLETE or (state.place is Place.OPEN and bool(state.matcher.is_accepting()))


@pytest.mark.parametrize(
    ("spec", "texts", "others"),
    [
        (r'root ::= "\u0041BC" "\x41\U0001F600"', ["ABCA😀"], ["䆼A😀", "ABC"]),
        (r'root ::= "\u00e9ade\n\"\\"', ['éade\n"\\'], ["\ue9ade"]),
        (r"root ::= [\u0041-\u005A]{3}", ["AMZ"], ["AMz", "AM"]),
        ("root ::= [^a&&b]{2}", ["c-", "x~"], ["ac", "c&", "cb"]),
        (r"root ::= [^a\-b~~]{2}", ["c0", "xx"], ["a0", "0~", "5b", "c-"]),
        ("root ::= [a&&b]+", ["a&b", "&"], ["c"]),
        ("root ::= [a-c-] [-a] [^^]", ["--a", "baa"], ["d-a", "--^"]),
        (r"root ::= [\]\[/] [^\]] .", ["][x", "//\n"], ["]]x"]),
        ("root ::= . [^]", ["\n\n", "é]"], ["a"]),
        ('root ::= ("a"*)? "c"', ["c", "aac"], ["ab"]),
        ('root ::= (("a"?){2}) "c"', ["c", "aac"], ["aaac"]),
        ('root ::= "a"{0} "b"{1,} ("c" | ){2} "d" {1, 2}', ["bd", "bbccd", "bcdd"], ["ab", "abd", "bcccd", "bddd"]),
        ('root ::= "a" | \nx ::= "b"', ["a", ""], ["b"]),
        (NAMES, ["sFf-1"], ["sff-1"]),
        ('root ::= "a"\n | "b" # or that: | "c"\n', ["a", "b"], ["c"]),
        ('\ufeffroot ::= "a\nb"\r\n\r\n', ["a\nb"], ["ab"]),
        ('root ::= "(" root ")" | "x"', ["x", "((x))"], ["(x", "()"]),
        ('root ::= w "end"\nw ::= [a-z]*', ["end", "endend", "enxend"], ["en", "endx"]),
        ('root ::= ws " " "b"\nws ::= " "*', [" b", "   b"], ["b"]),
        ('root ::= ("a" | "ab") ("c" | "bcd")', ["abcd", "abc", "ac"], ["abd"]),
        (JSON, ['{"a": ["b", {}], "\\u00e9": null}', "{}"], ['{"a"}', "[]", '{"\x7f": true}']),
    ],
)  # fmt: skip
def test_texts(spec: str, texts: list[str], others: list[str]) -> None:
    for text in filter(None, texts):
        assert takes(spec, text), text
    for text in others:
        assert not takes(spec, text), text


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ('root ::= "a', """line 1: unexpected '"a'"""),
        ('root ::= "a"\n  [a', r"line 2: unexpected '\[a'"),
        ("root ::= <[1]>", r"line 1: unexpected '<\[1\]>'"),
        ('# a comment\n"a"\nroot ::= "b"', "line 2: a rule must begin with its name and ::=, not with"),
        ('root ::= "a" | ("b"', "a parenthesis of rule 'root' is not closed"),
        ('root ::= ("a"\nb ::= "c")', "line 2: a parenthesis of rule 'root' is not closed"),
        ('root ::= "a")', "line 1: there is no parenthesis to close"),
        ('root ::= * "a"', r"line 1: there is nothing that \* could repeat"),
        ('root ::= "a"+?', r"line 1: there is nothing that \? could repeat"),
        ('root ::= "a"{3,2}', r"line 1: \{3,2\} ends before it begins"),
        ("root ::= [z-a]", r"line 1: the set \[z-a\] has a range that ends before it begins"),
        ("root ::= []", "line 1: a set must have a character"),
        (r'root ::= "\q"', r"line 1: \\q is no escape"),
        (r'root ::= "\u12"', r"line 1: \\u is no escape"),
        (r'root ::= "\ud800"', r"line 1: \\ud800 is no character"),
        ('root ::= "a"\nroot ::= "b"', "line 2: rule 'root' is there already"),
        ("root ::= other", "rule 'root' names 'other', which is not there"),
        ('other ::= "a"', "there is no rule 'root'"),
        ("root ::= root", "structured_outputs"),
        ('root ::= ""', "allows no text at all"),
    ],
)
def test_what_is_wrong_is_named(spec: str, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says) as refused:
        COMPILER.compile(StructuredOutput("grammar", spec))
    assert refused.value.param == "structured_outputs"


@pytest.mark.parametrize(
    "spec",
    [
        'start: "a"',
        '%llguidance {}\n?start: "a"',
        'start[max_tokens=3]: "a"',
        '\ufeffstart: "a"',
        '// x ::= "b"\rstart: "a"\r',
    ],
)
def test_lark_is_lark(spec: str) -> None:
    assert not is_gbnf(spec)
    assert takes(spec, "a")
