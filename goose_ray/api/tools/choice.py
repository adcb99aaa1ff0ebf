"""What a request asks of tools: whether the model may call, must call, or must call one function.

Knows neither the wire nor a model.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from goose_ray.api.tools.forced import NamedParser, RequiredParser
from goose_ray.api.tools.formats import FORMATS, ToolParser
from goose_ray.engine.structured import SCHEMA_OPTIONS, StructuredOutput

__all__ = ["MAX_CALLS", "ToolChoice", "ToolChoiceKind"]

# In one message. Small models go on with a list for ever if they may.
MAX_CALLS = 128

ToolChoiceKind = Literal["none", "auto", "required", "named"]

# The white space of templates' `tojson`, and no other: models could go on with it for ever.
_SPELLING: Mapping[str, Any] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """`functions` are the request's definitions of functions, by name."""

    kind: ToolChoiceKind
    functions: Mapping[str, Mapping[str, Any]]
    # of kind "named"
    function: str = ""
    parallel: bool = True

    def parser(self, format_name: str | None) -> ToolParser:
        """`format_name` is how the model writes calls of its own accord."""
        if self.kind == "named":
            return NamedParser(self.function)
        if self.kind == "required":
            return RequiredParser()
        if format_name is None:
            raise ValueError(f"no format to read calls of kind {self.kind!r} in")
        return FORMATS[format_name].parser(self.functions.keys())

    @property
    def structured(self) -> StructuredOutput | None:
        """What the answer is forced to be, if it is."""
        if self.kind == "named":
            schema = _parameters(self.functions[self.function])
            param = f"tools[{list(self.functions).index(self.function)}].function.parameters"
        elif self.kind == "required":
            schema, param = self._list_schema(), "tools"
        else:
            return None
        return StructuredOutput("json_schema", json.dumps({**schema, SCHEMA_OPTIONS: self._options()}), param)

    def _options(self) -> dict[str, Any]:
        """Of the compiler: what it cannot enforce is an error only if a function is to be `strict`."""
        is_strict = any(function.get("strict") for function in self.functions.values())
        return {**_SPELLING} if is_strict else {**_SPELLING, "lenient": True, "coerce_one_of": True}

    def _list_schema(self) -> dict[str, Any]:
        calls = [
            {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "enum": [name]},
                    "parameters": _moved(
                        _parameters(function), ("items", "anyOf", str(number), "properties", "parameters")
                    ),
                },
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
            for number, (name, function) in enumerate(self.functions.items())
        ]
        most = MAX_CALLS if self.parallel else 1
        return {"type": "array", "minItems": 1, "maxItems": most, "items": {"anyOf": calls}}


def _parameters(function: Mapping[str, Any]) -> Any:
    parameters = function.get("parameters")
    return _NO_PARAMETERS if parameters is None else parameters


def _moved(schema: Any, path: Sequence[str]) -> Any:
    """A schema that is to stand at `path` of another: references into itself follow it there."""
    if isinstance(schema, Mapping):
        return {
            key: _moved_reference(value, path) if key == "$ref" else _moved(value, path)
            for key, value in schema.items()
        }
    if isinstance(schema, list):
        return [_moved(item, path) for item in schema]
    return schema


def _moved_reference(reference: Any, path: Sequence[str]) -> Any:
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        return f"#/{'/'.join(path)}{reference[1:]}"
    # a property that happens to have this name
    return _moved(reference, path)
