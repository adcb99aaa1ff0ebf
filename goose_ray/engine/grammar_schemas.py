"""What in a JSON schema the library compiles in time that it does not count, and other limits of its own.

For multiples it looks at as many remainders as a divisor has, where parts of a schema hold together as their least
common multiple has; for a number of properties at every property with every other. And what it only finds to be too
much when an answer is under way. Knows schemas as Python values, and those within a Lark grammar.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any

__all__ = ["check_schemas", "schemas_in_lark"]

# Half a second to compile, and forty megabytes while the grammar is kept.
_MOST_REMAINDERS = 100_000
# Where numbers have a range too: with more, it compiles, and its first digit meets a limit of the library.
_MOST_IN_RANGE = 10_000
_RANGES = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"))
_MOST_DIGITS = 60
# Of an object: each may begin it, and with more it compiles, and its first name meets a limit of the library.
_MOST_OPTIONAL = 490
# Properties of all objects, where one of them says how many there must be.
_MOST_COUNTED = 100
_COUNTING = frozenset(("minProperties", "maxProperties"))
# Without these, parts of a schema hold apart.
_JOINING = frozenset(("$ref", "allOf", "anyOf", "oneOf", "not", "if", "patternProperties"))


def check_schemas(schemas: Iterable[Any]) -> None:
    """Raises ValueError if the schemas of one grammar have `multipleOf`s that are too large to follow, each or
    together, or too many properties.
    """
    parts = list(_objects(list(schemas)))
    _check_multiples(parts)
    _check_properties(parts)


def _check_properties(parts: Sequence[dict[str, Any]]) -> None:
    num_properties = 0
    for part in parts:
        properties, required = part.get("properties"), part.get("required")
        if isinstance(properties, dict):
            num_properties += len(properties)
            names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
            if (num_optional := len(properties.keys() - names)) > _MOST_OPTIONAL:
                raise ValueError(
                    f"an object may have at most {_MOST_OPTIONAL} properties that are not required, not {num_optional}"
                )
    if num_properties > _MOST_COUNTED and any(not _COUNTING.isdisjoint(part) for part in parts):
        raise ValueError(
            f"minProperties and maxProperties go with at most {_MOST_COUNTED} properties in all, not {num_properties}"
        )


def _check_multiples(parts: Sequence[dict[str, Any]]) -> None:
    divisors, is_joined, most = set(), False, _MOST_REMAINDERS
    for part in parts:
        is_joined |= not _JOINING.isdisjoint(part)
        if not _RANGES.isdisjoint(part):
            most = _MOST_IN_RANGE
        divisor = part.get("multipleOf")
        # what is no divisor the library refuses
        if isinstance(divisor, int | float) and not isinstance(divisor, bool) and math.isfinite(divisor) and divisor:
            divisors.add(abs(Decimal(str(divisor))).normalize())
    places = max((-int(divisor.as_tuple().exponent) for divisor in divisors), default=0)
    if any(divisor.adjusted() > _MOST_DIGITS for divisor in divisors) or places > _MOST_DIGITS:
        raise ValueError(f"multipleOf must have at most {_MOST_DIGITS} digits")
    where = " beside minimum or maximum" if most == _MOST_IN_RANGE else ""
    for divisor in divisors:
        if _remainders(divisor) > most:
            raise ValueError(f"multipleOf must be at most {most}{where}, its decimal point left out, not {divisor:f}")
    if sum(map(_remainders, divisors)) > most:
        raise ValueError(f"multipleOf: all together must be at most {most}{where}, decimal points left out")
    common = Decimal(math.lcm(*(int(divisor.scaleb(max(0, places))) for divisor in divisors))).scaleb(-max(0, places))
    if is_joined and _remainders(common) > most:
        raise ValueError(
            f"multipleOf: where parts of a schema are joined, the least common multiple of all must be at most "
            f"{most}{where}, its decimal point left out, not {common:f}"
        )


def _remainders(divisor: Decimal) -> int:
    """Of 0.25 and of 25 it is 25."""
    return int(divisor.scaleb(max(0, -int(divisor.normalize().as_tuple().exponent))))


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
    for found in re.finditer(r"%json\s*", grammar):
        try:
            yield decoder.raw_decode(grammar, found.end())[0]
        except (ValueError, RecursionError):
            continue
