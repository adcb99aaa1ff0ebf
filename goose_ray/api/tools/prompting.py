"""Conversations with tools as token ids: by the model's own chat template, or, if that has no place for tools, as text.

Knows templates by what the tokenizer makes of them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from goose_ray.api.calls import ChatPrompt
from goose_ray.api.tools.blind import without_tools
from goose_ray.api.tools.formats import FORMATS, ToolFormat, format_of_template
from goose_ray.engine.tokenizer import Tokenizer
from goose_ray.errors import ConfigError, InvalidRequestError

__all__ = ["ToolPrompts"]

_HELLO: Mapping[str, Any] = {"role": "user", "content": "Hello"}
_SYSTEM: Mapping[str, Any] = {"role": "system", "content": "Be brief"}
_PROBE: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "Probes",
        "parameters": {"type": "object", "properties": {"depth": {"type": "integer", "description": "How deep"}}},
    },
}


class ToolPrompts:
    """`setting` is the configuration's `tool_parser`.

    Raises ConfigError for a format that a model whose template shows it no tools cannot know of.
    """

    def __init__(self, tokenizer: Tokenizer, setting: str) -> None:
        self._tokenizer = tokenizer
        self._refuses = setting == "none"
        self._has_system_role = self._accepts([_SYSTEM, _HELLO])
        self._shows_tools = self._rendered([_HELLO], [_PROBE]) != self._rendered([_HELLO], None)
        self._format = self._choose(setting)
        markers = () if self._format is None else self._format.special_tokens
        ids = map(tokenizer.special_token_id, markers)
        self._marker_ids = frozenset(token_id for token_id in ids if token_id is not None)

    def encode(self, prompt: ChatPrompt, max_tokens: int) -> list[int]:
        """As the tokenizer's `apply_chat_template`. Raises InvalidRequestError for tools that cannot be had too."""
        self._check(prompt)
        messages: Sequence[Mapping[str, Any]] = prompt.messages
        if not self._shows_tools:
            messages = without_tools(messages, prompt.tools, has_system_role=self._has_system_role)
            return self._tokenizer.apply_chat_template(messages, options=prompt.template_options, max_tokens=max_tokens)
        if self._format is not None:
            messages = self._format.for_template(messages)
        return self._tokenizer.apply_chat_template(
            messages, tools=prompt.tools or None, options=prompt.template_options, max_tokens=max_tokens
        )

    def format_name(self, prompt: ChatPrompt | str | tuple[int, ...]) -> str | None:
        """The format that calls in the answer have, if the model may write any of its own accord."""
        return self._format.name if self._format is not None and _may_call(prompt) else None

    def shown_token_ids(self, prompt: ChatPrompt | str | tuple[int, ...]) -> frozenset[int]:
        """Special tokens that are text in the answer, as calls are written with them."""
        return self._marker_ids if _may_call(prompt) else frozenset()

    def _choose(self, setting: str) -> ToolFormat | None:
        if setting == "none":
            return None
        if setting == "auto":
            return format_of_template(self._tokenizer.chat_template) if self._shows_tools else FORMATS["hermes"]
        if not self._shows_tools and setting != "hermes" and self._tokenizer.chat_template:
            raise ConfigError(
                f"tool_parser: the model's chat template shows it no tools; of such a model auto or hermes can be "
                f"asked, not {setting!r}"
            )
        return FORMATS[setting]

    def _check(self, prompt: ChatPrompt) -> None:
        if prompt.tools and self._refuses:
            raise InvalidRequestError(
                "this server takes no tools: its configuration says tool_parser: none", "tools", "unsupported_parameter"
            )
        if prompt.tool_choice == "auto" and self._format is None:
            raise InvalidRequestError(
                "this model's way to write tool calls is not known to this server: tool_choice must be none, required "
                "or a function, or the server's tool_parser name the format",
                "tool_choice",
                "unsupported_parameter",
            )

    def _accepts(self, messages: Sequence[Mapping[str, Any]]) -> bool:
        return self._rendered(messages, None) is not None

    def _rendered(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> list[int] | None:
        try:
            return self._tokenizer.apply_chat_template(messages, tools=tools)
        except InvalidRequestError:
            return None


def _may_call(prompt: ChatPrompt | str | tuple[int, ...]) -> bool:
    return isinstance(prompt, ChatPrompt) and prompt.tool_choice == "auto"
