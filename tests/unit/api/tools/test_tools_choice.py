"""The schemas that forced calls keep to are ones that the grammar library compiles."""

from typing import Any

import pytest
from llguidance import LLMatcher

from goose_ray.api.tools.choice import ToolChoice

LIST: dict[str, Any] = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "required": ["value"],
}
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}, "$ref": {"type": "string"}},
    "$defs": {"city": {"type": "string"}},
}
# what no grammar of the library can say
EITHER: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "b": {"oneOf": [{"type": "string"}, {"type": "integer"}]}},
    "if": {"required": ["a"]},
    "then": {"required": ["b"]},
}
FUNCTIONS: dict[str, dict[str, Any]] = {
    "list": {"name": "list", "parameters": LIST},
    "weather": {"name": "weather", "parameters": CITY},
    "either": {"name": "either", "parameters": EITHER},
    "clock": {"name": "clock"},
}


def fault_of(choice: ToolChoice) -> str:
    assert choice.structured is not None
    grammar = LLMatcher.grammar_from_json_schema(choice.structured.spec)
    return str(LLMatcher.validate_grammar(grammar))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_of_one_function(name: str) -> None:
    assert fault_of(ToolChoice(kind="named", functions=FUNCTIONS, function=name)) == ""


@pytest.mark.parametrize("parallel", [True, False])
def test_lists_of_calls_with_references_into_their_own_schemas(parallel: bool) -> None:
    assert fault_of(ToolChoice(kind="required", functions=FUNCTIONS, parallel=parallel)) == ""


def test_a_strict_function_is_enforced_to_the_letter_or_refused() -> None:
    strict = {name: {**function, "strict": True} for name, function in FUNCTIONS.items()}
    assert "if" in fault_of(ToolChoice(kind="named", functions=strict, function="either"))
    assert fault_of(ToolChoice(kind="named", functions=strict, function="weather")) == ""


def test_nothing_is_forced_where_the_model_may_choose() -> None:
    assert ToolChoice(kind="auto", functions=FUNCTIONS).structured is None
    assert ToolChoice(kind="none", functions=FUNCTIONS).structured is None
