"""Operators in Lark's terminals that the library compiles in time without end: whether texts are left that are in one
expression and not in another is as hard as problems get, and it counts nothing of that.
"""

import re

__all__ = ["check_operators"]

# Whatever the library may read as one piece: a special token, a text, an expression, a comment, a repetition, and what
# begins none of these. A special token has no white space, and what one of both may take for some fits nothing here.
_PIECE = re.compile(
    r"""<[^<>\s\x00-\x20\x7f-\xa0]+>|"(?:\\.|[^"\\\r\n])*"|/(?!/)(?:\\.|[^/\\])+/|(?://|\#)[^\n]*|~(?=\s*[0-9])|[^<"/\#&~]+"""
)


def check_operators(lark: str) -> None:
    """Raises ValueError if a grammar has `&` or the `~` that negates, or anything that might hide one."""
    at = 0
    while at < len(lark):
        piece = _PIECE.match(lark, at)
        if piece is None:
            if (sign := lark[at]) in "&~":
                raise ValueError(f"the operator {sign} is not supported: it may take without end to compile")
            raise ValueError(f"line {lark.count(chr(10), 0, at) + 1}: {sign!r} begins nothing that Lark has")
        at = piece.end()
