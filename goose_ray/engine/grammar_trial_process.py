"""Does what is asked about grammars of strangers: each question in a child process with little time, memory and stack,
of which nothing is left. Run by `grammar_trial`; imports nothing of ours.

Reads lines of JSON: first the tokenizer and the limits, then questions, [what is asked, text]. Answers each with a line
of JSON: [verdict, what was found].
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
from llguidance.gbnf_to_lark import gbnf_to_lark

__all__ = ["COMPILE", "CONVERT", "ENDED", "KILLED", "REFUSED", "main"]

# Whether the library's grammar can be compiled, be it with an error; and GBNF in Lark, or [null, what is wrong].
COMPILE, CONVERT = "compile", "convert"
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

    asked = {COMPILE: compile, CONVERT: _converted}
    for line in sys.stdin:
        what, text = json.loads(line)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                _work_in_bounds(asked[what], text, told, writing)
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8") as pipe:
            found = pipe.read()
        _, status = os.waitpid(child, 0)
        answers.write(json.dumps([_verdict(status), json.loads(found) if found else None]) + "\n")
        answers.flush()


def _verdict(status: int) -> str:
    if not os.WIFSIGNALED(status):
        return ENDED
    return KILLED if os.WTERMSIG(status) == signal.SIGKILL else REFUSED


def _converted(text: str) -> list[str | None]:
    try:
        return [gbnf_to_lark(text), None]
    except Exception as error:
        return [None, str(error)]


def _work_in_bounds(work: Callable[[str], Any], text: str, told: dict[str, Any], writing: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # at the first it is ended by a signal of its own, at the second by that which anybody may send
    resource.setrlimit(resource.RLIMIT_CPU, (told["cpu_s"], told["cpu_s"] + 1))
    with open("/proc/self/statm") as file:
        in_use = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + told["memory_bytes"],) * 2)

    def run() -> None:
        found = json.dumps(work(text))
        with os.fdopen(writing, "w", encoding="utf-8") as pipe:
            pipe.write(found)

    threading.stack_size(_STACK_BYTES)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
