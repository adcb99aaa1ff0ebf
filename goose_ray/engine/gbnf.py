"""GBNF, the grammars of llama.cpp, in the grammar library's Lark, in time that is linear in the text.

https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md says what it is.

A rule that names no recursive one, not even itself, is a terminal: a regular expression, which the library reads fast,
and as long as it can where something follows it in a recursive rule. Line ends are blanks: a rule ends where the next
one begins.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator

__all__ = ["is_gbnf", "lark_of"]

# No line of Lark begins like this.
_IS_GBNF = re.compile(r"^[^\S\n]*[\w-]+[^\S\n]*::=", re.MULTILINE)
_TOKEN = re.compile(
    r"""(?P<blank>\s+|\#[^\n]*)
    |(?P<rule>[\w-]+)[^\S\n]*::=
    |(?P<name>[\w-]+)
    |"(?P<literal>(?:[^"\\]|\\.)*)"
    |\[(?P<set>(?:[^\]\\]|\\.)*)\]
    |(?P<times>[*+?]|\{\s*(?P<least>\d{1,9})\s*(?P<more>,\s*(?P<most>\d{1,9})?\s*)?\})
    |(?P<mark>[()|.])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_CHARACTER = re.compile(r"\\x([0-9A-Fa-f]{2})|\\u([0-9A-Fa-f]{4})|\\U([0-9A-Fa-f]{8})|\\(.)|([^\\])", re.DOTALL)
_NAMED = {"n": "\n", "r": "\r", "t": "\t"}
_SHOWN_CHARS = 20
_ANYTHING = "/(?s:.)/"
_NOTHING = '""'


def is_gbnf(text: str) -> bool:
    return bool(_IS_GBNF.search(text))


def lark_of(text: str) -> str:
    """Raises ValueError for what is no GBNF."""
    bodies = _bodies(text)
    names = _names(bodies)
    start = "" if names["root"] == "start" else f"start: {names['root']}\n"
    # a name that is referred to stands in a list of its own
    return start + "".join(
        f"{names[rule]}: {' '.join(names[part[0]] if isinstance(part, list) else part for part in body)}\n"
        for rule, body in bodies.items()
    )


def _bodies(text: str) -> dict[str, list[str | list[str]]]:
    """Of each rule what it consists of, in Lark but for the names of rules, of which each is a list of one."""
    bodies: dict[str, list[str | list[str]]] = {}
    body: list[str | list[str]] | None = None
    # where the groups that are open begin in the body, and the item that ends it, if that may be repeated
    open_at: list[int] = []
    item: int | None = None
    # an alternative without anything in it has to be said
    is_empty = True
    position = 0

    def close() -> None:
        if open_at:
            raise ValueError(f"a parenthesis of rule {next(reversed(bodies))!r} is not closed")
        if is_empty and body is not None:
            body.append(_NOTHING)

    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise ValueError(f"line {_line(text, position)}: unexpected {_shown(text, position)}")
        kind, value, start, position = str(found.lastgroup), found[0], position, found.end()
        if kind == "blank":
            continue
        try:
            if kind == "rule":
                close()
                if (rule := found["rule"]) in bodies:
                    raise ValueError(f"rule {rule!r} is there already")
                body = bodies[rule] = []
                item, is_empty = None, True
                continue
            if body is None:
                raise ValueError(f"a rule must begin with its name and ::=, not with {_shown(text, start)}")
            if value in ("|", ")"):
                if is_empty:
                    body.append(_NOTHING)
                body.append(value)
                if value == ")" and not open_at:
                    raise ValueError("there is no parenthesis to close")
                item, is_empty = (None, True) if value == "|" else (open_at.pop(), False)
            elif value == "(":
                open_at.append(len(body))
                body.append(value)
                item, is_empty = None, True
            elif found["times"]:
                if item is None:
                    raise ValueError(f"there is nothing that {value} could repeat")
                if (times := _times(found)) is None:
                    body[item:] = [_NOTHING]
                else:
                    body.append(times)
                item = None
            else:
                item, is_empty = len(body), False
                body.append([value] if kind == "name" else _terminal(kind, found))
        except ValueError as error:
            raise ValueError(f"line {_line(text, start)}: {error}") from None
    close()
    if "root" not in bodies:
        raise ValueError("there is no rule 'root'")
    return bodies


def _times(found: re.Match[str]) -> str | None:
    """In Lark; None for never."""
    if found["least"] is None:
        return found["times"]
    least = int(found["least"])
    most = int(found["most"]) if found["most"] else None if found["more"] else least
    if most is not None and most < least:
        raise ValueError(f"{found['times']} ends before it begins")
    return None if most == 0 else f"{{{least},{'' if most is None else most}}}"


def _terminal(kind: str, found: re.Match[str]) -> str:
    if kind == "mark":
        return _ANYTHING
    if kind == "literal":
        # Lark's are JSON's, without the one character below 128 that is unprintable and above the blank
        return json.dumps("".join(char for char, _ in _characters(found["literal"]))).replace("\x7f", r"\u007f")
    return _set(found["set"])


def _set(text: str) -> str:
    """A set as a regular expression, in which no character has a meaning of its own."""
    negated = text.startswith("^")
    characters = list(_characters(text[negated:]))
    parts, at = [], 0
    while at < len(characters):
        first = last = characters[at][0]
        # a hyphen that is last stands for itself
        if at + 2 < len(characters) and characters[at + 1] == ("-", False):
            last = characters[at + 2][0]
            at += 2
        if last < first:
            raise ValueError(f"the set [{text[:_SHOWN_CHARS]}] has a range that ends before it begins")
        parts.append(rf"\x{{{ord(first):x}}}" + (rf"-\x{{{ord(last):x}}}" if last != first else ""))
        at += 1
    if not parts:
        if negated:
            return _ANYTHING
        raise ValueError("a set must have a character")
    return f"/[{'^' if negated else ''}{''.join(parts)}]/"


def _characters(text: str) -> Iterator[tuple[str, bool]]:
    """Each with whether it was escaped."""
    for found in _CHARACTER.finditer(text):
        code = found[1] or found[2] or found[3]
        if code:
            number = int(code, 16)
            if number > 0x10FFFF or 0xD800 <= number < 0xE000:
                raise ValueError(f"{found[0]} is no character")
            yield chr(number), True
        elif found[4]:
            if found[4].isalnum() and found[4] not in _NAMED:
                raise ValueError(f"{found[0]} is no escape")
            yield _NAMED.get(found[4], found[4]), True
        else:
            yield found[5], False


def _names(bodies: dict[str, list[str | list[str]]]) -> dict[str, str]:
    """In Lark: small letters, or capitals where it is a terminal. Raises ValueError for a rule that is not there."""
    users: dict[str, list[str]] = defaultdict(list)
    missing = {}
    for rule, body in bodies.items():
        used = {part[0] for part in body if isinstance(part, list)}
        for name in used:
            if name not in bodies:
                raise ValueError(f"rule {rule!r} names {name!r}, which is not there")
            users[name].append(rule)
        missing[rule] = len(used)
    known = [rule for rule, number in missing.items() if not number]
    for terminal in known:
        for rule in users[terminal]:
            missing[rule] -= 1
            if not missing[rule]:
                known.append(rule)
    terminals = frozenset(known)
    names = {}
    for number, rule in enumerate(bodies):
        name = f"r{number}_" + rule.replace("-", "_").lower()
        names[rule] = name.upper() if rule in terminals else name
    return names if "root" in terminals else {**names, "root": "start"}


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _shown(text: str, position: int) -> str:
    return repr(text[position : position + _SHOWN_CHARS])
