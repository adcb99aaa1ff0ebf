"""The request fields that say what shape an answer must have, OpenAI's and vLLM's, and the one specification they mean.

Checks shapes; whether a schema, an expression or a grammar is valid is found out by the replica that compiles it.
"""

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from goose_ray.api.validation import WireModel, only_neutral
from goose_ray.engine.structured import SCHEMA_OPTIONS, StructuredKind, StructuredOutput
from goose_ray.errors import InvalidRequestError

__all__ = ["JsonSchemaFormat", "ResponseFormat", "Schema", "StructuredFields", "StructuredOutputs"]

Schema = dict[str, Any]


def _schema_or_text(value: Any) -> Any:
    if value is None or isinstance(value, dict | str):
        return value
    raise PydanticCustomError("schema", "Input should be a JSON schema, or its JSON text")


# null is none
SchemaOrText = Annotated[Schema | str | None, BeforeValidator(_schema_or_text)]
Choices = Annotated[list[str], Field(fail_fast=True, min_length=1)]


class JsonSchemaFormat(WireModel):
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    schema_: Schema | None = Field(default=None, alias="schema")
    # false: what the compiler does not know of the schema is left out, instead of refused
    strict: bool | None = None


class ResponseFormat(WireModel):
    """OpenAI's. A schema is enforced with or without `strict`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(WireModel):
    """vLLM's: one of the first five."""

    json_: SchemaOrText = Field(default=None, alias="json")
    regex: Annotated[str, Field(min_length=1)] | None = None
    grammar: Annotated[str, Field(min_length=1)] | None = None
    choice: Choices | None = None
    json_object: bool | None = None
    # between the tokens of JSON
    disable_any_whitespace: bool | None = False
    whitespace_pattern: str | None = None

    # refused unless neutral
    disable_additional_properties: Annotated[bool | None, only_neutral(False)] = None
    structural_tag: Annotated[str | None, only_neutral()] = None


class StructuredFields(WireModel):
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    # what vLLM called them before
    guided_json: SchemaOrText = None
    guided_regex: Annotated[str, Field(min_length=1)] | None = None
    guided_grammar: Annotated[str, Field(min_length=1)] | None = None
    guided_choice: Choices | None = None

    @property
    def structured(self) -> StructuredOutput | None:
        """Raises InvalidRequestError naming the field if more than one shape is asked for, or none by an empty one."""
        wanted = [*self._of_response_format(), *self._of_structured_outputs(), *self._of_guided()]
        if len(wanted) > 1:
            raise InvalidRequestError(
                f"{wanted[0].param} and {wanted[1].param} ask for two shapes of one answer; send one of them",
                wanted[1].param,
            )
        return wanted[0] if wanted else None

    def _of_response_format(self) -> list[StructuredOutput]:
        asked = self.response_format
        if asked is None or asked.type == "text":
            return []
        if asked.type == "json_object":
            return [StructuredOutput("json_object", param="response_format")]
        of_schema = asked.json_schema
        if of_schema is None:
            raise InvalidRequestError(
                "response_format of type json_schema needs json_schema", "response_format.json_schema"
            )
        param = "response_format.json_schema.schema"
        if of_schema.schema_ is None:
            return [StructuredOutput("json_object", param=param)]
        options = {"lenient": True} if of_schema.strict is False else {}
        return [_of_json(of_schema.schema_, param, options)]

    def _of_structured_outputs(self) -> list[StructuredOutput]:
        asked = self.structured_outputs
        if asked is None:
            return []
        options: dict[str, Any] = {}
        if asked.disable_any_whitespace:
            options["whitespace_flexible"] = False
        if asked.whitespace_pattern is not None:
            options["whitespace_pattern"] = asked.whitespace_pattern
        wanted = _vllm("structured_outputs.", asked.json_, asked.regex, asked.grammar, asked.choice, options)
        if asked.json_object:
            wanted.append(_of_json({"type": "object"}, "structured_outputs.json_object", options))
        if not wanted:
            raise InvalidRequestError(
                "structured_outputs needs one of json, regex, grammar, choice and json_object", "structured_outputs"
            )
        return wanted

    def _of_guided(self) -> list[StructuredOutput]:
        return _vllm("guided_", self.guided_json, self.guided_regex, self.guided_grammar, self.guided_choice, {})


def _vllm(
    prefix: str,
    json_: Schema | str | None,
    regex: str | None,
    grammar: str | None,
    choice: list[str] | None,
    options: dict[str, Any],
) -> list[StructuredOutput]:
    wanted = []
    if regex is not None and (len(regex) - len(regex.rstrip("\\"))) % 2:
        # the compiler would take what it puts behind for the escaped character, and find that nothing matches
        raise InvalidRequestError(
            f"{prefix}regex is no valid regex: the backslash at its end escapes nothing", f"{prefix}regex"
        )
    if json_ is not None:
        wanted.append(_of_json(json_, f"{prefix}json", options))
    texts: tuple[tuple[StructuredKind, str | None], ...] = (("regex", regex), ("grammar", grammar))
    wanted += [StructuredOutput(kind, text, f"{prefix}{kind}") for kind, text in texts if text is not None]
    if choice is not None:
        wanted.append(StructuredOutput("choice", json.dumps(choice, ensure_ascii=False), f"{prefix}choice"))
    return wanted


def _of_json(schema: Schema | str, param: str, options: dict[str, Any]) -> StructuredOutput:
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(f"{param} is no JSON: {error}", param) from None
        if not isinstance(schema, dict):
            raise InvalidRequestError(f"{param} must be a JSON object", param)
    if options:
        schema = {**schema, SCHEMA_OPTIONS: {**_options_in(schema, param), **options}}
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{param} is no JSON: {error}", param) from None
    return StructuredOutput("json_schema", text, param)


def _options_in(schema: Schema, param: str) -> dict[str, Any]:
    given = schema.get(SCHEMA_OPTIONS, {})
    if not isinstance(given, dict):
        raise InvalidRequestError(f"{SCHEMA_OPTIONS} in {param} must be an object", param)
    return given
