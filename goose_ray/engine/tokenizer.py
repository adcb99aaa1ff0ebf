"""What the system needs of a tokenizer. Implementations live on the floor above; the engine calls `decode`, and hands
`definition` to the grammar library.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

__all__ = ["Tokenizer"]


class Tokenizer(Protocol):
    """Text to token ids and back. Safe to call from several threads at once."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...

    @property
    def chat_template(self) -> str:
        """The text of the chat template, of all of them if there are several; empty if there is none."""
        ...

    @property
    def definition(self) -> str:
        """The text of a `tokenizer.json`, without truncation or padding."""
        ...

    def encode(self, text: str, *, max_tokens: int | None = None) -> list[int]:
        """The ids of a raw prompt, with the special tokens the model expects around one (a BOS, mostly).

        Text that is known to be more than `max_tokens` by its length alone is refused before any work is done on it,
        with InvalidRequestError.
        """
        ...

    def decode(self, token_ids: Sequence[int], shown: frozenset[int] = frozenset()) -> str:
        """The text of the ids; special tokens but those of `shown` give none, bytes that are no UTF-8 give U+FFFD."""
        ...

    def special_token_id(self, name: str) -> int | None:
        """The id of the special token of this name, None if there is none."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """What one token stands for by itself: a part of a character too, and the name of a special token."""
        ...

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
    ) -> list[int]:
        """The ids of a conversation, ending where the assistant's reply begins. `options` are variables of the
        template's own. Raises InvalidRequestError, for `max_tokens` as `encode` does.
        """
        ...
