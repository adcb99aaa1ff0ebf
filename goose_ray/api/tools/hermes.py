"""Hermes' and Qwen's way to write calls: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, one after another."""

import re
from collections.abc import Mapping, Sequence, Set
from typing import Any

from goose_ray.api.tools.call_scanner import CallScanner
from goose_ray.api.tools.text_parser import TextParser

__all__ = ["HermesFormat", "HermesParser"]

_BEGIN, _END = "<tool_call>", "</tool_call>"
# Models close a brace too many now and then.
_SURPLUS = re.compile(r"[\s}\]]*")
# Other formats have the same tags around something else.
_JSON_INSIDE = re.compile(r"""name\\?["']\s*:.{0,80}?arguments\\?["']\s*:""", re.DOTALL)


class HermesParser(TextParser):
    call_end = _END

    def _read_content(self, is_last: bool) -> bool:
        if self._content_up_to((_BEGIN,), is_last) is None:
            return False
        self._begin_calls(CallScanner(_BEGIN))
        return True

    def _read_between(self, is_last: bool) -> bool:
        surplus = _SURPLUS.match(self._pending)
        assert surplus is not None
        self._pending = self._pending[surplus.end() :]
        if self._pending.startswith("{"):
            # more calls between the same tags
            self._begin_calls(CallScanner())
            return True
        if self._pending.startswith(_END):
            self._pending = self._pending[len(_END) :]
        elif _END.startswith(self._pending):
            # the beginning of the tag, or nothing
            if is_last:
                self._pending = ""
            return False
        self._state = self._read_content
        return True


class HermesFormat:
    name = "hermes"
    special_tokens = (_BEGIN, _END)

    def parser(self, tool_names: Set[str]) -> HermesParser:
        return HermesParser()

    def writes(self, template: str) -> bool:
        return _BEGIN in template and _JSON_INSIDE.search(template) is not None

    def for_template(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        return messages
