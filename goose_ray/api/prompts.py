"""Prompts of calls to token ids, in threads of their own: a long one takes longer than others should wait for a token.

Knows calls, a tokenizer, and what tools are to the model.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from goose_ray.api.bad_words import without_frame
from goose_ray.api.calls import ChatPrompt, DecodeCall, EncodeCall, GenerateCall
from goose_ray.api.tools.prompting import ToolPrompts
from goose_ray.engine.tokenizer import Tokenizer
from goose_ray.errors import InvalidRequestError

__all__ = ["PromptReader"]

_Given = TypeVar("_Given")
_Made = TypeVar("_Made")

# Tokenising is not what a replica's CPUs are for; and the default executor has other users, who must not wait for it.
_NUM_THREADS = 2


class PromptReader:
    """`max_tokens` is the length of the context: text that cannot be as few tokens is not tokenised at all."""

    def __init__(self, tokenizer: Tokenizer, max_tokens: int, tools: ToolPrompts) -> None:
        self._tokenizer = tokenizer
        self._tools = tools
        self._max_tokens = max_tokens
        self._executor = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="goose-tokenise")

    async def read(self, call: GenerateCall) -> tuple[int, ...]:
        """Raises InvalidRequestError. A call that is cancelled before its turn takes none."""
        if isinstance(call.prompt, tuple):
            return call.prompt
        return await self._in_thread(self._encode, call.prompt)

    async def encode(self, call: EncodeCall) -> tuple[int, ...]:
        """Raises InvalidRequestError."""
        return await self._in_thread(self._encode_as_asked, call)

    async def decode(self, call: DecodeCall) -> str:
        """Raises InvalidRequestError for what is no token."""
        return await self._in_thread(self._decode_all, call.token_ids)

    def echoed(self, call: GenerateCall, token_ids: tuple[int, ...]) -> str | None:
        """The text that the answer begins with: the prompt as it was sent, if it was sent as text."""
        if not call.echo:
            return None
        return call.prompt if isinstance(call.prompt, str) else self._tokenizer.decode(token_ids)

    def stop(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, work: Callable[[_Given], _Made], given: _Given) -> _Made:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, given)

    def _encode_as_asked(self, call: EncodeCall) -> tuple[int, ...]:
        token_ids = self._encode(call.prompt)
        if call.add_special_tokens or isinstance(call.prompt, ChatPrompt):
            return token_ids
        return without_frame(token_ids, self._tokenizer.encode(""))

    def _decode_all(self, token_ids: tuple[int, ...]) -> str:
        most = self._tokenizer.vocab_size - 1
        wrong = next((token_id for token_id in token_ids if token_id > most), None)
        if wrong is not None:
            raise InvalidRequestError(f"tokens must be ids from 0 to {most}, not {wrong}", "tokens")
        return self._tokenizer.decode(token_ids, shown=frozenset(token_ids))

    def _encode(self, prompt: ChatPrompt | str) -> tuple[int, ...]:
        if isinstance(prompt, ChatPrompt):
            return tuple(self._tools.encode(prompt, self._max_tokens))
        return tuple(self._tokenizer.encode(prompt, max_tokens=self._max_tokens))
