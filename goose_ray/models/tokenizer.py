"""A Hugging Face fast tokenizer behind the engine's tokenizer protocol.

Knows nothing about requests, streams or stop conditions. Safe to use from several threads: nothing is changed after
loading.
"""

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from goose_ray.errors import InvalidRequestError, ModelLoadError
from goose_ray.models.token_bytes import TokenBytes
from goose_ray.models.token_lengths import longest_token

__all__ = ["HFTokenizer", "load_tokenizer"]

# What a template is given besides options, and what else transformers' method is told.
_RESERVED = {"messages", *inspect.signature(PreTrainedTokenizerFast.apply_chat_template).parameters}


class HFTokenizer:
    """`eos_token_ids` are the ids that end a reply, as the model's generation config names them."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, eos_token_ids: tuple[int, ...]) -> None:
        self._tokenizer = tokenizer
        # The Rust tokenizer itself: the wrapper's own encode sets truncation on it, which is not thread-safe.
        self._backend = tokenizer.backend_tokenizer
        self._token_bytes = TokenBytes(self._backend)
        self._longest_token = longest_token(self._backend, self._token_bytes)
        self.eos_token_ids = eos_token_ids
        self.vocab_size = int(self._backend.get_vocab_size())
        added = self._backend.get_added_tokens_decoder()
        self._special_ids = {token.content: token_id for token_id, token in added.items() if token.special}
        self._special_token_ids = frozenset(self._special_ids.values())
        self.chat_template = _all_templates(tokenizer.chat_template)

    @property
    def definition(self) -> str:
        """The text of a `tokenizer.json`, without truncation or padding."""
        copy = Tokenizer.from_str(self._backend.to_str())
        copy.no_truncation()
        copy.no_padding()
        text: str = copy.to_str()
        return text

    def encode(self, text: str, *, max_tokens: int | None = None) -> list[int]:
        """Token ids of raw text, with the special tokens that the model puts around every text (often none).

        Raises InvalidRequestError if the text is too long for `max_tokens` whatever its tokens are.
        """
        return self._encode(text, max_tokens, add_special_tokens=True)

    def decode(self, token_ids: Sequence[int], shown: frozenset[int] = frozenset()) -> str:
        """The text, without special tokens but those of `shown`. An incomplete UTF-8 sequence gives U+FFFD."""
        if shown:
            hidden = self._special_token_ids - shown
            token_ids = [token_id for token_id in token_ids if token_id not in hidden]
        text: str = self._backend.decode(list(token_ids), skip_special_tokens=not shown)
        return text

    def special_token_id(self, name: str) -> int | None:
        return self._special_ids.get(name)

    def token_bytes(self, token_id: int) -> bytes:
        """What one token stands for by itself: a part of a character too, and the name of a special token."""
        return self._token_bytes(token_id)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
    ) -> list[int]:
        """Token ids of the conversation in the model's own format, ending where the assistant's reply begins.
        `options` are variables of the template's own, such as `enable_thinking`; none may be a parameter of
        transformers' method, which would let them change what is rendered and how.

        Raises InvalidRequestError if the model has no chat template, its template refuses the messages, or they are
        too long for `max_tokens` whatever their tokens are.
        """
        if not self._tokenizer.chat_template:
            raise InvalidRequestError("this model has no chat template: use completions with a prompt", "messages")
        _refuse_reserved(options or {})
        try:
            prompt: str = self._tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) if tools else None,
                add_generation_prompt=True,
                tokenize=False,
                **(options or {}),
            )
        except (TemplateError, TypeError) as error:
            raise InvalidRequestError(f"the model's chat template refuses the messages: {error}", "messages") from error
        # The template has written every special token already.
        return self._encode(prompt, max_tokens, add_special_tokens=False)

    def _encode(self, text: str, max_tokens: int | None, *, add_special_tokens: bool) -> list[int]:
        """By the batch call, a batch of one: the plain one holds the interpreter lock for as long as it takes, and a
        long prompt would stop the whole replica.
        """
        if max_tokens is not None and self._longest_token is not None:
            num_bytes = len(text.encode())
            if num_bytes > max_tokens * self._longest_token:
                raise InvalidRequestError(
                    f"This model's maximum context length is {max_tokens} tokens, which {num_bytes} bytes of text "
                    "cannot be. Please shorten it.",
                    code="context_length_exceeded",
                )
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids


def _refuse_reserved(options: Mapping[str, Any]) -> None:
    for name in options:
        if name in _RESERVED or not name.isidentifier():
            raise InvalidRequestError(
                f"chat_template_kwargs: {name!r} is no variable that a template may be given here",
                "chat_template_kwargs",
            )


def _all_templates(templates: str | Mapping[str, str] | None) -> str:
    return "\n".join(templates.values()) if isinstance(templates, Mapping) else templates or ""


def load_tokenizer(path: Path) -> HFTokenizer:
    """The tokenizer in a model's directory. Raises ModelLoadError if it is missing or cannot be read."""
    try:
        if (path / "tokenizer.json").is_file():
            # Read as it stands. AutoTokenizer may rebuild it as the class that tokenizer_config.json names, with that
            # class's own pre-tokenizer: a GPT2Tokenizer loses the split into single digits of SmolLM2.
            tokenizer = PreTrainedTokenizerFast.from_pretrained(path, local_files_only=True)
        else:
            tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, ImportError) as error:
        raise ModelLoadError(f"the tokenizer in {path} cannot be loaded: {error}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ModelLoadError(f"the model in {path} has no fast tokenizer (tokenizer.json); convert it to one first")
    return HFTokenizer(tokenizer, _eos_token_ids(path, tokenizer.eos_token_id))


def _eos_token_ids(path: Path, of_tokenizer: int | None) -> tuple[int, ...]:
    """The generation config's ids (chat models often add their end-of-turn there), else the config's, else the
    tokenizer's."""
    for name in ("generation_config.json", "config.json"):
        file = path / name
        found = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id") if file.is_file() else None
        if found is not None:
            return tuple(found) if isinstance(found, list) else (int(found),)
    return () if of_tokenizer is None else (of_tokenizer,)
