"""What shape a request's output must have: the specification as the client gave it, not yet compiled.

Plain data. Knows nothing of grammars' semantics; whether a specification is valid shows when it is compiled.
"""

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["SCHEMA_OPTIONS", "Preface", "StructuredKind", "StructuredOutput"]

# The place in a schema for what its compiler is to do with it: the grammar library's own keyword.
SCHEMA_OPTIONS = "x-guidance"

StructuredKind = Literal["json_object", "json_schema", "regex", "grammar", "choice"]


@dataclass(frozen=True, slots=True)
class Preface:
    """Free text before the shape, up to `end`: it may come, and then opens with `begin`. Without `begin` the output
    starts inside it.
    """

    begin: str
    end: str


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """Equal if kind and specification are, whatever field they came in."""

    kind: StructuredKind
    # JSON text of the schema, the regular expression, the grammar (Lark or GBNF), a JSON list of the choices; empty for
    # `json_object`
    spec: str = ""
    # the request field to blame if it is wrong
    param: str = field(default="structured_outputs", compare=False)
    preface: Preface | None = None
