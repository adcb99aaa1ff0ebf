"""Compiles grammars of strangers, each in a child process with little time, memory and stack, of which nothing is left.
Run by `grammar_trial`; imports nothing of ours.

Reads lines of JSON: first the tokenizer and the limits, then grammars of the library. Answers each with a line, the
verdict: whether compiling it came to its end, be it with an error.
"""

import json
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

__all__ = ["ENDED", "KILLED", "REFUSED", "main"]

# By itself, by a limit, by somebody else.
ENDED, REFUSED, KILLED = "ended", "refused", "killed"
# Less than any thread that compiles in earnest has.
_STACK_BYTES = 1 << 20


def main() -> None:
    # The library may write to standard output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    told = json.loads(sys.stdin.readline())
    tokenizer = LLTokenizer(told["definition"], n_vocab=told["n_vocab"], eos_token=told["eos_token"])

    def compile(source: str) -> None:
        limits = LLParserLimits(verbose_errors=False, max_lexer_states=told["max_lexer_states"])
        LLMatcher(tokenizer, source, log_level=0, limits=limits).compute_bitmask()

    for line in sys.stdin:
        source = json.loads(line)
        child = os.fork()
        if not child:
            try:
                _work_in_bounds(compile, source, told)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        answers.write(_verdict(status) + "\n")
        answers.flush()


def _verdict(status: int) -> str:
    if not os.WIFSIGNALED(status):
        return ENDED
    return KILLED if os.WTERMSIG(status) == signal.SIGKILL else REFUSED


def _work_in_bounds(work: Callable[[str], None], source: str, told: dict[str, Any]) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # at the first it is ended by a signal of its own, at the second by that which anybody may send
    resource.setrlimit(resource.RLIMIT_CPU, (told["cpu_s"], told["cpu_s"] + 1))
    with open("/proc/self/statm") as file:
        in_use = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + told["memory_bytes"],) * 2)
    threading.stack_size(_STACK_BYTES)
    thread = threading.Thread(target=work, args=(source,))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
