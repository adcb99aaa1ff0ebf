"""The formats that calls are read in, and which of them a model writes.

A format is one file and one line here. Knows chat templates by their text alone.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Any, Protocol

from goose_ray.api.tools.events import ToolEvent
from goose_ray.api.tools.hermes import HermesFormat
from goose_ray.api.tools.llama3_json import Llama3JsonFormat
from goose_ray.api.tools.mistral import MistralFormat

__all__ = ["FORMATS", "ToolFormat", "ToolParser", "format_of_template"]


Message = Mapping[str, Any]


class ToolParser(Protocol):
    """Of one answer, in pieces. Never raises, whatever the text: what is no call is content."""

    def feed(self, text: str) -> list[ToolEvent]:
        """What has become certain with this piece."""
        ...

    def finish(self) -> list[ToolEvent]:
        """What is left when the answer ends, wherever that is. Not to be fed any more."""
        ...


class ToolFormat(Protocol):
    @property
    def name(self) -> str:
        """As in the configuration; vLLM's name where it has the format."""
        ...

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """What the parser must see even if it is special tokens, which are no text otherwise."""
        ...

    def parser(self, tool_names: Set[str]) -> ToolParser:
        """`tool_names` are the request's."""
        ...

    def writes(self, template: str) -> bool:
        """Whether a model with this chat template writes its calls so."""
        ...

    def for_template(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages as templates of this format want them."""
        ...


FORMATS: Mapping[str, ToolFormat] = {
    tool_format.name: tool_format for tool_format in (HermesFormat(), Llama3JsonFormat(), MistralFormat())
}


def format_of_template(template: str) -> ToolFormat | None:
    """None if it is none of `FORMATS`."""
    return next((tool_format for tool_format in FORMATS.values() if tool_format.writes(template)), None)
