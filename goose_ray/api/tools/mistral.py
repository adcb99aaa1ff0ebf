"""Mistral's ways to write calls behind `[TOOL_CALLS]`: a list, `[{"name": …, "arguments": {…}}]`, or, in newer models,
`name[ARGS]{…}`, with the marker again before the next call.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence, Set
from typing import Any

from goose_ray.api.tools.call_scanner import CallScanner
from goose_ray.api.tools.text_parser import TextParser

__all__ = ["MistralFormat", "MistralParser"]

Message = Mapping[str, Any]

_MARKER, _CALL_ID, _ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
# between the marker and the arguments
_HEAD = re.compile(rf"\s*([\w.:/-]+)\s*(?:{re.escape(_CALL_ID)}\s*\w*\s*)?(?:{re.escape(_ARGS)})?\s*", re.ASCII)
_MAX_HEAD_CHARS = 256
# the templates raise for any other id
_TEMPLATE_ID = re.compile(r"[a-zA-Z0-9]{9}")


class MistralParser(TextParser):
    call_end = _MARKER

    def _read_content(self, is_last: bool) -> bool:
        if self._content_up_to((_MARKER,), is_last) is None:
            return False
        self._pending = _MARKER + self._pending
        self._state = self._read_head
        return True

    def _read_head(self, is_last: bool) -> bool:
        """Of a list, or of an object by itself, there is none."""
        rest = self._pending[len(_MARKER) :]
        place = rest.find("{", 0, _MAX_HEAD_CHARS)
        if place < 0 and len(rest) < _MAX_HEAD_CHARS and not is_last:
            return False
        head = rest[: max(0, place)]
        self._pending = rest
        if place >= 0 and head.strip() in ("", "["):
            self._begin_calls(CallScanner(_MARKER))
        elif named := _HEAD.fullmatch(head):
            self._pending = rest[place:]
            self._begin_calls(CallScanner.of_arguments(named.group(1), _MARKER + head))
        else:
            self._content(_MARKER)
            self._state = self._read_content
        return True

    def _read_between(self, is_last: bool) -> bool:
        self._state = self._read_content
        return True


class MistralFormat:
    name = "mistral"
    special_tokens = (_MARKER, _CALL_ID, _ARGS)

    def parser(self, tool_names: Set[str]) -> MistralParser:
        return MistralParser()

    def writes(self, template: str) -> bool:
        return _MARKER in template

    def for_template(self, messages: Sequence[Message]) -> Sequence[Message]:
        """With ids of calls as the templates want them; those of one call stay alike."""
        return [_with_short_ids(message) for message in messages]


def _with_short_ids(message: Message) -> Message:
    changed = dict(message)
    if "tool_calls" in changed:
        changed["tool_calls"] = [{**call, "id": _short_id(call["id"])} for call in changed["tool_calls"]]
    if "tool_call_id" in changed:
        changed["tool_call_id"] = _short_id(changed["tool_call_id"])
    return changed


def _short_id(call_id: str) -> str:
    """Itself, if the templates take it: clients may bring conversations that began on another server."""
    if _TEMPLATE_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]
