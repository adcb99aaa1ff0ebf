"""Operators in Lark's terminals that the library compiles in time without end: whether texts are left that are in one
expression and not in another is as hard as problems get, and it counts nothing of that.
"""

import re

__all__ = ["check_operators"]

# What the library reads as one piece, in its order: a special token, a text, an expression, a comment; and an operator.
# `~` and a number repeat, as in Lark.
_PIECES = re.compile(
    r"""<[^<>\s]+>|"(?:\\.|[^"\\\n])*"|/(?!/)(?:\\.|[^/\\])+/|(?://|\#)[^\n]*|(?P<operator>&|~(?!\s*[0-9]))"""
)


def check_operators(lark: str) -> None:
    """Raises ValueError if a grammar has `&` or the `~` that negates."""
    for found in _PIECES.finditer(lark):
        if operator := found["operator"]:
            raise ValueError(f"the operator {operator} is not supported: it may take without end to compile")
