"""Grammars of the library that have another one in them: one with free text before it, which is what a model thinks
before an answer that has a shape, and one of strangers.

Knows the library's language, and of the text only the marks around it.
"""

import json
from typing import Any

from llguidance import LLTokenizer

from goose_ray.engine.structured import Preface

__all__ = ["behind", "unforced"]

# Models go on with a line or two after the mark; more than these might be all that they write.
_LARK = """\
start: {start} @shape
GAP: /[ \\t\\r\\n]{{0,8}}/
"""
_UNFORCED = """\
%llguidance {"no_forcing": true}
start: @unforced
"""
_UP_TO_TEXT = "text[suffix={end}]: /(?s:.*)/\n"
_UP_TO_TOKEN = "text: TEXT {end}\nTEXT: /(?s:.*)/\n"


def behind(preface: Preface, source: str, tokenizer: LLTokenizer) -> str:
    """The grammar `source` of the library, behind the preface. Special tokens come up nowhere in the latter either."""
    end = _token(preface.end, tokenizer)
    text = _UP_TO_TEXT.format(end=json.dumps(preface.end)) if end is None else _UP_TO_TOKEN.format(end=end)
    if preface.begin:
        begin = _token(preface.begin, tokenizer) or json.dumps(preface.begin)
        start = f"(GAP {begin} text GAP)?"
    else:
        start = "text GAP"
    shape, *others = _grammars(source)
    lark = _LARK.format(start=start) + text
    return json.dumps({"grammars": [{"lark_grammar": lark}, {**shape, "name": "shape"}, *others]})


def unforced(source: str) -> str:
    """The grammar `source`, for which the library looks at one token after the other, and not for bytes that must come:
    where a terminal swallows what should follow it (`/a*/ "a"`) it would find them without end.
    """
    first, *others = _grammars(source)
    return json.dumps({"grammars": [{"lark_grammar": _UNFORCED}, {**first, "name": "unforced"}, *others]})


def _grammars(source: str) -> list[dict[str, Any]]:
    """Lark is passed on as it stands; everything else is JSON by now."""
    try:
        grammars: list[dict[str, Any]] = json.loads(source)["grammars"]
    except ValueError:
        return [{"lark_grammar": source}]
    return grammars


def _token(mark: str, tokenizer: LLTokenizer) -> str | None:
    """The token that a mark is by itself, in the library's language: the library never takes it for text."""
    ids = tokenizer.tokenize_str(mark)
    return f"<[{ids[0]}]>" if len(ids) == 1 and tokenizer.is_special_token(ids[0]) else None
