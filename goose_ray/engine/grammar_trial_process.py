"""Compiles grammars to see whether that ends: each in a child process with little time, memory and stack, of which
nothing is left. Run by `grammar_trial`; imports nothing of ours.

Reads lines of JSON, first the tokenizer and the limits, then grammars, and answers each grammar with a line.
"""

import json
import os
import resource
import sys
import threading
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

__all__ = ["PASSED", "REFUSED", "main"]

PASSED, REFUSED = "passed", "refused"
# Less than any thread that compiles in earnest has.
_STACK_BYTES = 1 << 20


def main() -> None:
    # The library may write to standard output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    told = json.loads(sys.stdin.readline())
    tokenizer = LLTokenizer(told["definition"], n_vocab=told["n_vocab"], eos_token=told["eos_token"])
    for line in sys.stdin:
        child = os.fork()
        if not child:
            try:
                _compile_in_bounds(tokenizer, json.loads(line), told)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        # Whatever the library says of a grammar or raises, it will do again; a signal alone is what is looked for.
        answers.write(f"{REFUSED if os.WIFSIGNALED(status) else PASSED}\n")
        answers.flush()


def _compile_in_bounds(tokenizer: LLTokenizer, source: str, told: dict[str, Any]) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (told["cpu_s"], told["cpu_s"]))
    with open("/proc/self/statm") as file:
        in_use = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + told["memory_bytes"],) * 2)

    def compile() -> None:
        limits = LLParserLimits(verbose_errors=False, max_lexer_states=told["max_lexer_states"])
        LLMatcher(tokenizer, source, log_level=0, limits=limits).compute_bitmask()

    threading.stack_size(_STACK_BYTES)
    thread = threading.Thread(target=compile)
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
