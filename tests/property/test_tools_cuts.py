"""Tool calls come out the same however an answer's text is cut into bursts, and wherever it ends."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tool_answers import FUNCTIONS, Reading, read

from goose_ray.api.tools.choice import ToolChoice
from goose_ray.api.tools.json_scanner import JsonScanner

NAMES = sorted(FUNCTIONS)
MARKERS = {
    "hermes": ("<tool_call>", "</tool_call>"),
    "llama3_json": ("<|python_tag|>", ";"),
    "mistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
}

characters = st.one_of(st.sampled_from('{}[]",:\\<>/; \n'), st.characters(exclude_categories=["Cs"]))
texts = st.text(characters, max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
calls = st.tuples(st.sampled_from(NAMES), st.dictionaries(texts, values, max_size=3))
# letters and digits: nothing that a marker or JSON could begin with
prose = st.text(st.sampled_from("abcé😀1 "), max_size=6)


def written(tool_format: str, name: str, arguments: dict[str, Any], *, ascii_only: bool) -> str:
    text = json.dumps(arguments, ensure_ascii=ascii_only)
    if tool_format == "hermes":
        return f'<tool_call>\n{{"name": "{name}", "arguments": {text}}}\n</tool_call>'
    if tool_format == "llama3_json":
        return f'{{"name": "{name}", "parameters": {text}}};'
    return f"[TOOL_CALLS]{name}[ARGS]{text}"


def cut(text: str, places: Sequence[int]) -> list[str]:
    ends = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    return [text[start:end] for start, end in pairwise(ends)]


def same_however_cut(text: str, tool_format: str | None, places: Sequence[int], choice: ToolChoice | None) -> Reading:
    whole = read([text], tool_format, choice=choice)
    assert read(list(text), tool_format, choice=choice) == whole
    assert read(cut(text, places), tool_format, choice=choice) == whole
    return whole


cuts = st.lists(st.integers(0, 10_000), max_size=8)
formats = st.sampled_from(sorted(MARKERS))


@settings(max_examples=150, deadline=None)
@given(formats, prose, st.lists(st.tuples(calls, prose), min_size=1, max_size=3), cuts, st.booleans())
def test_every_call_that_was_written_is_read(
    tool_format: str, first: str, parts: list[Any], places: list[int], ascii_only: bool
) -> None:
    text, said = first, first
    for (name, arguments), after in parts:
        text += written(tool_format, name, arguments, ascii_only=ascii_only) + after
        said += after
    reading = same_however_cut(text, tool_format, places, None)
    assert [(name, json.loads(arguments)) for name, arguments in reading.calls] == [call for call, _ in parts]
    # White space beside calls is the parser's to drop.
    assert reading.content.split() == said.split() or "".join(reading.content.split()) == "".join(said.split())


@settings(max_examples=250, deadline=None)
@given(formats, st.data(), cuts)
def test_nothing_raises_and_no_cut_matters(tool_format: str, data: st.DataObject, places: list[int]) -> None:
    """Broken, nested and unfinished calls, markers anywhere, the end anywhere."""
    whole_calls = calls.map(lambda call: written(tool_format, *call, ascii_only=False))
    broken = st.sampled_from(['{"name": "f", ', '"arguments": {', "{", "}", "[", "]", '"', ",", '{"name": "f"}', "\\"])
    part = st.one_of(whole_calls, broken, st.sampled_from(MARKERS[tool_format]), texts)
    text = "".join(data.draw(st.lists(part, max_size=8)))
    text = text[: data.draw(st.integers(0, len(text)))]
    same_however_cut(text, tool_format, places, None)


@settings(max_examples=80, deadline=None)
@given(st.lists(calls, min_size=1, max_size=3), st.integers(0, 400), cuts)
def test_forced_answers(called: list[tuple[str, dict[str, Any]]], end: int, places: list[int]) -> None:
    required = ToolChoice(kind="required", functions=FUNCTIONS)
    text = json.dumps([{"name": name, "parameters": arguments} for name, arguments in called])
    reading = same_however_cut(text, None, places, required)
    assert [(name, json.loads(arguments)) for name, arguments in reading.calls] == called
    same_however_cut(text[:end], None, places, required)
    name, arguments = called[0]
    named = ToolChoice(kind="named", functions=FUNCTIONS, function=name)
    text = json.dumps(arguments)
    assert same_however_cut(text, None, places, named).calls == ((name, text),)


@settings(max_examples=300, deadline=None)
@given(st.one_of(values.map(json.dumps), st.text(st.sampled_from('{}[]",: \\u0a1-.eE\ntrue'), max_size=12)), cuts)
def test_the_scanner_takes_what_json_takes(text: str, places: list[int]) -> None:
    """Python's decoder is the oracle. A space ends a number that ends the text."""
    text = text.lstrip() + " "
    try:
        _, expected = json.JSONDecoder().raw_decode(text)
    except ValueError:
        expected = None
    scanner = JsonScanner()
    num_read = 0
    for piece in cut(text, places):
        num_read += scanner.feed(piece)
        if scanner.status != "open":
            break
    assert (scanner.status == "complete") is (expected is not None) or _number_runs_on(text, expected)
    if scanner.status == "complete":
        assert num_read == expected


def _number_runs_on(text: str, expected: int | None) -> bool:
    """Python reads `1` of `1e` and of `01`; behind it comes what no JSON goes on with."""
    return expected is not None and text[expected - 1].isalnum() and text[expected] in "0123456789.eE+-trua"


@pytest.mark.parametrize("text", ["{" * 5000, '{"a":' * 5000, "[" * 5000, '<tool_call>{"a": ' + "[" * 5000])
@pytest.mark.parametrize("tool_format", sorted(MARKERS))
def test_depth_is_no_matter(text: str, tool_format: str) -> None:
    assert read([text], tool_format) == Reading(text, (), "stop")
