"""Compiles grammars off the engine's thread and off every event loop: both would make others wait. In another process
first, which may die of it.
"""

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from goose_ray.engine.grammar import Grammar
from goose_ray.engine.grammar_compiler import GrammarCompiler
from goose_ray.engine.grammar_trial import GrammarTrial
from goose_ray.engine.structured import StructuredOutput
from goose_ray.errors import OverloadedError

__all__ = ["GrammarWorkers"]

# Grammars compiled at once. More than one, so that one that takes long delays few.
_COMPILERS = 2
_TIMEOUT_S = 20.0


class GrammarWorkers:
    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._threads = ThreadPoolExecutor(_COMPILERS, thread_name_prefix="goose-grammar")
        self._trials = [GrammarTrial(lambda: compiler.vocabulary) for _ in range(_COMPILERS)]
        # those that no thread has, of which each takes one
        self._idle: SimpleQueue[GrammarTrial] = SimpleQueue()
        for trial in self._trials:
            self._idle.put(trial)

    def prepare(self) -> None:
        """Builds and starts what the first specification would wait for."""
        self._compiler.prepare()
        for trial in self._trials:
            with contextlib.suppress(OSError):
                trial.start()

    async def compiled(self, structured: StructuredOutput) -> Grammar:
        """Raises InvalidRequestError if it cannot be compiled, and OverloadedError if it cannot in time, for others or
        for a machine that is too busy. One that is known waits for no other.
        """
        if (known := self._compiler.known(structured)) is not None:
            return known
        loop, begun = asyncio.get_running_loop(), asyncio.Event()

        def compile() -> Grammar:
            # closed: who asked has gone
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(begun.set)
            trial = self._idle.get()
            try:
                return self._compiler.compile(structured, trial)
            finally:
                self._idle.put(trial)

        compiled = asyncio.wrap_future(self._threads.submit(compile))
        try:
            await asyncio.wait_for(begun.wait(), _TIMEOUT_S)
        except TimeoutError:
            raise OverloadedError("structured outputs of others are being compiled; try again later") from None
        finally:
            if not begun.is_set():
                compiled.cancel()
        try:
            return await asyncio.wait_for(compiled, _TIMEOUT_S)
        except TimeoutError:
            # It may take no more than a few seconds of a processor.
            raise OverloadedError("compiling structured output takes too long at present; try again later") from None

    def stop(self) -> None:
        """Waits for nothing. Idempotent."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for trial in self._trials:
            trial.stop()
