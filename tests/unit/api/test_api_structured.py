"""What the wire models make of the fields that shape an answer, and which field they name when they refuse."""

import json
import math
from typing import Any

import pytest
from wire_requests import chat, completion

from goose_ray.engine.structured import StructuredOutput
from goose_ray.errors import InvalidRequestError

_SCHEMA = {"type": "object", "properties": {"é": {"type": "integer"}}}


def of_completion(**fields: Any) -> StructuredOutput | None:
    (call,) = completion(**fields).to_calls("r")
    return call.sampling.structured


def of_chat(**fields: Any) -> StructuredOutput | None:
    return chat(**fields).to_call("r").sampling.structured


@pytest.mark.parametrize("read", [of_chat, of_completion])
@pytest.mark.parametrize(
    ("fields", "kind", "spec", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", "", "response_format"),
        (
            {"structured_outputs": {"json_object": True}},
            "json_schema",
            '{"type": "object"}',
            "structured_outputs.json_object",
        ),
        (
            {"structured_outputs": {"json": _SCHEMA}},
            "json_schema",
            json.dumps(_SCHEMA, ensure_ascii=False),
            "structured_outputs.json",
        ),
        (
            {"structured_outputs": {"json": json.dumps(_SCHEMA)}},
            "json_schema",
            json.dumps(_SCHEMA, ensure_ascii=False),
            "structured_outputs.json",
        ),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+", "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": "root ::= x"}}, "grammar", "root ::= x", "structured_outputs.grammar"),
        ({"structured_outputs": {"choice": ["é", "b"]}}, "choice", '["é", "b"]', "structured_outputs.choice"),
        ({"guided_json": _SCHEMA}, "json_schema", json.dumps(_SCHEMA, ensure_ascii=False), "guided_json"),
        ({"guided_regex": "a+"}, "regex", "a+", "guided_regex"),
        ({"guided_grammar": "g"}, "grammar", "g", "guided_grammar"),
        ({"guided_choice": ["a"]}, "choice", '["a"]', "guided_choice"),
    ],
)
def test_fields_become_one_specification(read: Any, fields: dict[str, Any], kind: str, spec: str, param: str) -> None:
    found = read(**fields)
    assert (found.kind, found.spec, found.param) == (kind, spec, param)


@pytest.mark.parametrize(
    ("strict", "options"), [(None, None), (True, None), (False, {"lenient": True, "whitespace_flexible": False})]
)
def test_openai_json_schema(strict: bool | None, options: dict[str, Any] | None) -> None:
    schema = {**_SCHEMA, "x-guidance": {"whitespace_flexible": False}} if options else _SCHEMA
    named = {"name": "reply", "description": "d", "schema": schema, "strict": strict}
    found = of_chat(response_format={"type": "json_schema", "json_schema": named})
    assert found is not None
    assert (found.kind, found.param) == ("json_schema", "response_format.json_schema.schema")
    assert json.loads(found.spec) == {**_SCHEMA, **({"x-guidance": options} if options else {})}
    # The order of properties is that of the answer.
    assert list(json.loads(found.spec)) == list(schema)


def test_blanks_between_tokens_of_json() -> None:
    for asked, options in (
        ({"disable_any_whitespace": True}, {"whitespace_flexible": False}),
        ({"whitespace_pattern": " ?"}, {"whitespace_pattern": " ?"}),
    ):
        found = of_completion(structured_outputs={"json_object": True, **asked})
        assert found is not None
        assert json.loads(found.spec) == {"type": "object", "x-guidance": options}


@pytest.mark.parametrize("read", [of_chat, of_completion])
def test_no_shape(read: Any) -> None:
    assert read() is None
    assert read(response_format={"type": "text"}, structured_outputs=None, guided_json=None) is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": []}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema_": {}}}},
            "response_format.json_schema.schema_",
        ),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": "[]"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": []}}, "structured_outputs.json"),
        ({"guided_json": 1}, "guided_json"),
        ({"structured_outputs": {"json": {"const": math.inf}}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": '{"enum": [NaN]}'}}, "structured_outputs.json"),
        ({"guided_json": {"minimum": math.nan}}, "guided_json"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice[0]"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"json": {}, "json_object": True}}, "structured_outputs.json_object"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs.regex",
        ),
        ({"guided_regex": "a", "structured_outputs": {"regex": "a"}}, "guided_regex"),
        (
            {"structured_outputs": {"json": {"x-guidance": 1}, "disable_any_whitespace": True}},
            "structured_outputs.json",
        ),
    ],
)
def test_what_is_wrong_is_refused_by_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        of_completion(**fields)
    assert refused.value.param == param
    assert refused.value.status == 400


@pytest.mark.parametrize("prefix", ["structured_outputs.", "guided_"])
def test_a_backslash_at_the_end_of_an_expression_is_malformed(prefix: str) -> None:
    def read(regex: str) -> StructuredOutput | None:
        fields = {"structured_outputs": {"regex": regex}} if prefix.endswith(".") else {"guided_regex": regex}
        return of_completion(**fields)

    for regex in ("\\", "a\\", "\\\\\\"):
        with pytest.raises(InvalidRequestError, match="is no valid regex: the backslash at its end") as refused:
            read(regex)
        assert refused.value.param == f"{prefix}regex"
    for regex in ("\\\\", "\\d", "a\\\\"):
        assert read(regex) == StructuredOutput("regex", regex, f"{prefix}regex")
