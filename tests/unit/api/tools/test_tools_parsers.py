"""What in an answer's text is a call and what is content, by format. How it is cut is the property tests' part."""

import pytest
from tool_answers import auto, read

from goose_ray.api.tools.choice import ToolChoice
from goose_ray.api.tools.formats import FORMATS
from goose_ray.config import GooseConfig

PARIS = '{"city": "Paris"}'
NESTED = r'{"a": "é {\"} ] </tool_call> 😀", "b": [1, {"c": null}], "d": -1.5e3}'


def hermes(arguments: str, name: str = "get_weather") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def test_the_configuration_has_the_formats_that_there_are() -> None:
    choices = GooseConfig.model_json_schema()["properties"]["tool_parser"]["enum"]
    assert sorted(choices) == sorted(["auto", "none", *FORMATS])


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (hermes(PARIS), "", [("get_weather", PARIS)]),
        (hermes(NESTED), "", [("get_weather", NESTED)]),
        (f"I look.\n{hermes(PARIS)}\n", "I look.\n", [("get_weather", PARIS)]),
        (f"{hermes(PARIS)}\n{hermes('{}', 'f')}", "", [("get_weather", PARIS), ("f", "{}")]),
        (f"{hermes(PARIS)}\nand then", "\nand then", [("get_weather", PARIS)]),
        # the name last, keys of other servers, no arguments at all, arguments as a string
        ('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', "", [("f", '{"a": 1}')]),
        ('<tool_call>{"type": "function", "id": 3, "name": "f", "arguments": {}}</tool_call>', "", [("f", "{}")]),
        ('<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
        ('<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
        (r'<tool_call>{"name": "f", "arguments": "{\"a\": \"é\"}"}</tool_call>', "", [("f", '{"a": "é"}')]),
        # what models do: a list, several between the same tags, a brace too many or too few, no end
        ('<tool_call>[{"name": "f"}, {"name": "f", "arguments": {}}]</tool_call>', "", [("f", "{}"), ("f", "{}")]),
        ('<tool_call>{"name": "f"}\n{"name": "f"}</tool_call>', "", [("f", "{}"), ("f", "{}")]),
        (f'<tool_call>{{"name": "f", "arguments": {PARIS}}}}}</tool_call>!', "!", [("f", PARIS)]),
        (f'<tool_call>{{"name": "f", "arguments": {PARIS}</tool_call>!', "!", [("f", PARIS)]),
        (f'<tool_call>{{"name": "f", "arguments": {PARIS}}}', "", [("f", PARIS)]),
        # a stray tag before the real one: vllm 53638
        (f"Or <tool_call> I think {hermes(PARIS)}", "Or <tool_call> I think ", [("get_weather", PARIS)]),
        # not a call, and not lost
        ("  no call \n", "  no call \n", []),
        (" \n ", " \n ", []),
        ("use <tool_call> tags", "use <tool_call> tags", []),
        ("<tool_call>", "<tool_call>", []),
        ("<tool_call>{}</tool_call>", "<tool_call>{}</tool_call>", []),
        ('<tool_call>{"name": 7}</tool_call>', '<tool_call>{"name": 7}</tool_call>', []),
        (r'<tool_call>{"name": "\ud800"}</tool_call>', r'<tool_call>{"name": "\ud800"}</tool_call>', []),
        ('<tool_call>{"name": "f", "arguments": [1]}', '<tool_call>{"name": "f", "arguments": [1]}', []),
        ('<tool_call>{"name": "f", "arguments": {a: 1}}', '<tool_call>{"name": "f", "arguments": {a: 1}}', []),
        ('<tool_call>{"name": "f" "arguments": {}}', '<tool_call>{"name": "f" "arguments": {}}', []),
        (f'<tool_call>{{"name": {"1" * 5000}}}', f'<tool_call>{{"name": {"1" * 5000}}}', []),
        # known to the client already when it goes wrong: it gets the rest as it is
        ("<tool_call>{'a': 1}</tool_call>", "<tool_call>{'a': 1}</tool_call>", []),
        (hermes("{\"a\": 1, 'b': 2}", "f"), "", [("f", "{\"a\": 1, 'b': 2}}\n")]),
    ],
)
def test_hermes(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    reading = read([text], "hermes")
    assert (reading.content, list(reading.calls)) == (content, calls)
    assert reading.finish_reason == ("tool_calls" if calls else "stop")


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f'{{"name": "f", "parameters": {NESTED}}}', "", [("f", NESTED)]),
        (f'{{"type": "function", "name": "f", "parameters": {PARIS}}}', "", [("f", PARIS)]),
        (f'<|python_tag|>{{"name": "f", "parameters": {PARIS}}}', "", [("f", PARIS)]),
        ('{"name": "f", "parameters": {}}; {"name": "f", "arguments": {}}', "", [("f", "{}"), ("f", "{}")]),
        ('<|python_tag|>{"name": "f"};{"name": "get_weather"}', "", [("f", "{}"), ("get_weather", "{}")]),
        ('[{"name": "f"}, {"name": "f"}]', "", [("f", "{}"), ("f", "{}")]),
        ('I look. {"name": "f", "parameters": {}}} done', "I look.  done", [("f", "{}")]),
        # a name that is not the request's: only what is marked is a call
        ('<|python_tag|>{"name": "other", "parameters": {}}', "", [("other", "{}")]),
        ('{"name": "other", "parameters": {}}', '{"name": "other", "parameters": {}}', []),
        # any other JSON, code, lists, links
        ('{"name": "f", "age": 3}', '{"name": "f", "age": 3}', []),
        ("{1, 2} [a](b) f(x) { return; } [[1]] {", "{1, 2} [a](b) f(x) { return; } [[1]] {", []),
        ('<|python_tag|>search.call(query="x")', '<|python_tag|>search.call(query="x")', []),
    ],
)
def test_llama3_json(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    reading = read([text], "llama3_json")
    assert (reading.content, list(reading.calls)) == (content, calls)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f'[TOOL_CALLS] [{{"name": "f", "arguments": {NESTED}}}]', "", [("f", NESTED)]),
        ('[TOOL_CALLS][{"name": "f"}, {"name": "f", "arguments": {}, "id": "a"}]', "", [("f", "{}"), ("f", "{}")]),
        ('[TOOL_CALLS] {"name": "f", "arguments": {}}', "", [("f", "{}")]),
        (f"[TOOL_CALLS]f[ARGS]{NESTED}", "", [("f", NESTED)]),
        (f"I look.[TOOL_CALLS]f[CALL_ID]aB3456789[ARGS]{PARIS}", "I look.", [("f", PARIS)]),
        (f"[TOOL_CALLS]f[ARGS]{{}}[TOOL_CALLS]get_weather{PARIS}", "", [("f", "{}"), ("get_weather", PARIS)]),
        ("[TOOL_CALLS]", "[TOOL_CALLS]", []),
        ("[TOOL_CALLS] none of them {", "[TOOL_CALLS] none of them {", []),
        ("[TOOL_CALLS]f[ARGS]7", "[TOOL_CALLS]f[ARGS]7", []),
        ("[TOOL_CALLS]f[ARGS]{7", "[TOOL_CALLS]f[ARGS]{7", []),
        ("[TOOL_CALLS]" + "f" * 300 + "{}", "[TOOL_CALLS]" + "f" * 300 + "{}", []),
    ],
)
def test_mistral(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    reading = read([text], "mistral")
    assert (reading.content, list(reading.calls)) == (content, calls)


def test_a_call_is_told_before_its_arguments_have_ended() -> None:
    reading = read(['<tool_call>{"name": "f", "arguments": {"text": "a long'], "hermes", finish_reason="length")
    assert reading.calls == (("f", '{"text": "a long'),)
    assert (reading.content, reading.finish_reason) == ("", "length")


def test_an_answer_cut_before_its_call_is_known_is_content() -> None:
    reading = read(['Hm. <tool_call>{"name": "f", "argu'], "hermes", finish_reason="length")
    assert (reading.content, reading.calls) == ('Hm. <tool_call>{"name": "f", "argu', ())


def test_one_burst_may_hold_content_and_several_calls() -> None:
    """And the calls are one entry each, whatever the parts they came in."""
    reading = read([f"a{hermes(PARIS)}b{hermes(NESTED, 'f')}c"], "hermes")
    assert reading.content == "abc"
    assert [name for name, _ in reading.calls] == ["get_weather", "f"]


def test_without_parallel_calls_the_first_is_all() -> None:
    reading = read([f"{hermes(PARIS)}{hermes('{}', 'f')} bye"], "hermes", choice=auto(parallel=False))
    assert (reading.calls, reading.content) == ((("get_weather", PARIS),), " bye")


def test_answers_that_a_schema_forced() -> None:
    functions = {"f": {"name": "f"}}
    required = ToolChoice(kind="required", functions=functions)
    text = f'[{{"name": "f", "parameters": {PARIS}}}, {{"name": "f", "parameters": {{}}}}]'
    reading = read([text], None, choice=required)
    assert (reading.content, reading.calls) == ("", (("f", PARIS), ("f", "{}")))
    assert reading.finish_reason == "tool_calls"
    assert read(['[{"name": "f"'], None, choice=required, finish_reason="length").content == '[{"name": "f"'

    named = ToolChoice(kind="named", functions=functions, function="f")
    reading = read(['{"city": "Pa', 'ris"}'], None, choice=named)
    assert (reading.calls, reading.finish_reason) == ((("f", PARIS),), "stop")
