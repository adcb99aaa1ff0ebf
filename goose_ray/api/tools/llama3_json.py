"""Llama 3's way to write calls: the bare JSON of one, `{"name": …, "parameters": {…}}`, or several with `;` between.

Newer models put `<|python_tag|>` before it. Without it nothing but the JSON itself says that it is a call: it must
call one of the request's tools.
"""

import re
from collections.abc import Mapping, Sequence, Set
from typing import Any

from goose_ray.api.tools.call_scanner import CallScanner
from goose_ray.api.tools.text_parser import TextParser

__all__ = ["Llama3JsonFormat", "Llama3JsonParser"]

_TAG = "<|python_tag|>"
_BRACKETS = ("{", "[")
_BETWEEN = re.compile(r"[\s;}\]]+")
_ASKS_FOR_JSON = re.compile(r"""name\\?["']\s*:.{0,80}?parameters\\?["']\s*:\s*dictionary""", re.DOTALL)


class Llama3JsonParser(TextParser):
    call_end = _TAG

    def __init__(self, tool_names: Set[str]) -> None:
        super().__init__()
        self._tool_names = tool_names

    def _read_content(self, is_last: bool) -> bool:
        marker = self._content_up_to((_TAG, *_BRACKETS), is_last)
        if marker is None:
            return False
        if marker == _TAG:
            self._begin_calls(CallScanner(_TAG))
        else:
            self._pending = marker + self._pending
            self._begin_calls(CallScanner(names=self._tool_names))
        return True

    def _read_between(self, is_last: bool) -> bool:
        between = _BETWEEN.match(self._pending)
        if between is None:
            self._state = self._read_content
            return True
        self._pending = self._pending[between.end() :]
        # White space matters if content follows.
        self._content("".join(filter(str.isspace, between.group())))
        return True


class Llama3JsonFormat:
    name = "llama3_json"
    special_tokens = (_TAG,)

    def parser(self, tool_names: Set[str]) -> Llama3JsonParser:
        return Llama3JsonParser(tool_names)

    def writes(self, template: str) -> bool:
        return _TAG in template or _ASKS_FOR_JSON.search(template) is not None

    def for_template(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        return messages
