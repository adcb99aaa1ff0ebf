"""Multiples in JSON schemas: the library looks at as many remainders as a divisor has, and counts none of them.

Where parts of a schema hold together, it is as many as their least common multiple has. Knows schemas as Python values,
and those within a Lark grammar.
"""

import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

__all__ = ["check_multiples", "schemas_in_lark"]

# A tenth of a second to compile, and seven megabytes while the grammar is kept.
_MOST_REMAINDERS = 20_000
_MOST_DIGITS = 60
# Without these, parts of a schema hold apart.
_JOINING = frozenset(("$ref", "allOf", "anyOf", "oneOf", "not", "if"))


def check_multiples(schema: Any) -> None:
    """Raises ValueError if its `multipleOf`s are too large to follow."""
    divisors, is_joined = [], False
    for part in _objects(schema):
        is_joined |= not _JOINING.isdisjoint(part)
        divisor = part.get("multipleOf")
        # what is no divisor the library refuses
        if isinstance(divisor, int | float) and not isinstance(divisor, bool) and math.isfinite(divisor) and divisor:
            divisors.append(abs(Decimal(str(divisor))).normalize())
    places = [max(0, -int(divisor.as_tuple().exponent)) for divisor in divisors]
    if any(divisor.adjusted() > _MOST_DIGITS for divisor in divisors) or max(places, default=0) > _MOST_DIGITS:
        raise ValueError(f"multipleOf must have at most {_MOST_DIGITS} digits")
    for divisor, own in zip(divisors, places, strict=True):
        if divisor.scaleb(own) > _MOST_REMAINDERS:
            raise ValueError(
                f"multipleOf must be at most {_MOST_REMAINDERS}, its decimal point left out, not {divisor:f}"
            )
    if is_joined and math.lcm(*(int(divisor.scaleb(max(places))) for divisor in divisors)) > _MOST_REMAINDERS:
        raise ValueError(
            f"multipleOf: where parts of a schema are joined, the least common multiple of all must be at most "
            f"{_MOST_REMAINDERS}, decimal points left out"
        )


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in it, itself included."""
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, dict):
            yield one
            pending += one.values()
        elif isinstance(one, list):
            pending += one


def schemas_in_lark(grammar: str) -> Iterator[Any]:
    """What stands behind each `%json` and is JSON; what is none the library refuses."""
    decoder = json.JSONDecoder()
    for found in re.finditer(r"%json(?:\s|(?:#|//)[^\n]*)*", grammar):
        try:
            yield decoder.raw_decode(grammar, found.end())[0]
        except (ValueError, RecursionError):
            continue
