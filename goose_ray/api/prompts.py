"""Prompts of calls to token ids, in threads of their own: a long one takes longer than others should wait for a token.

Knows calls, a tokenizer, and what tools are to the model.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from goose_ray.api.calls import ChatPrompt, GenerateCall
from goose_ray.api.tools.prompting import ToolPrompts
from goose_ray.engine.tokenizer import Tokenizer

__all__ = ["PromptReader"]

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
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._encode, call.prompt)

    def echoed(self, call: GenerateCall, token_ids: tuple[int, ...]) -> str | None:
        """The text that the answer begins with: the prompt as it was sent, if it was sent as text."""
        if not call.echo:
            return None
        return call.prompt if isinstance(call.prompt, str) else self._tokenizer.decode(token_ids)

    def stop(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _encode(self, prompt: ChatPrompt | str) -> tuple[int, ...]:
        if isinstance(prompt, ChatPrompt):
            return tuple(self._tools.encode(prompt, self._max_tokens))
        return tuple(self._tokenizer.encode(prompt, max_tokens=self._max_tokens))
