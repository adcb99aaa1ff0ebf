"""From a specification to a grammar, with limits on what one may cost. Knows nothing of who asks.

The library counts its work instead of the seconds, and gives up at limits that are mostly reached within tens of
milliseconds. It does not count everything, so who compiles what strangers send has it tried first. What is refused is
the client's fault and says so.
"""

import json
import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, LLParserLimits

from goose_ray.engine import gbnf
from goose_ray.engine.grammar import Grammar, error_of
from goose_ray.engine.grammar_preface import behind, unforced
from goose_ray.engine.grammar_trial import TRIAL_CPU_S, TRIAL_MEMORY_BYTES, GrammarTrial
from goose_ray.engine.grammar_vocabulary import GrammarVocabulary
from goose_ray.engine.structured import SCHEMA_OPTIONS, StructuredOutput
from goose_ray.engine.tokenizer import Tokenizer
from goose_ray.errors import InvalidRequestError

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

__all__ = ["GrammarCompiler"]

_logger = logging.getLogger(__name__)

_MAX_SPEC_CHARS = 128 * 1024
# Of what the library says of it.
_SHOWN_CHARS = 300
# What is kept: so many, which took so long to compile in all. A large one takes 80 MB for each second.
_MAX_GRAMMARS, _MAX_KEPT_S = 32, 4.0
# Of the library's lexer, at one or two kilobytes: they are kept as long as the grammar is.
_MAX_LEXER_STATES = 20_000
# Of the client's own expressions those that no other part of JSON goes on with: these separators, and blanks.
_PLAIN = {("item_separator", ", "), ("key_separator", ": ")}
_BLANKS = re.compile(r"(?:(?:[ \t\n\r]|\\[tnrs]|\[(?:[ \t\n\r]|\\[tnrs])+\])(?:[*+?]|\{[0-9,]*\})?)*")
# Some, but a model that has lost its way must not write blanks until its tokens are used up.
_DEFAULTS: "JsonCompileOptions" = {"whitespace_pattern": r"[ \t\n\r]{1,40}"}


class GrammarCompiler:
    """Keeps the grammars used last. Every method may be called from any thread."""

    def __init__(self, tokenizer: Tokenizer, *, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._tokenizer, self._vocab_size, self._eos_token_ids = tokenizer, vocab_size, eos_token_ids
        self._grammars: OrderedDict[StructuredOutput, Grammar] = OrderedDict()
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Builds what all grammars share, which takes a second, before anybody waits for it. Where the library cannot
        read the tokenizer, that is logged, and every specification will be refused.
        """
        with self._lock:
            self._vocabulary  # noqa: B018

    def compile(self, structured: StructuredOutput, trial: GrammarTrial | None = None) -> Grammar:
        """Raises InvalidRequestError naming `structured.param` for what is no specification, or too much of one, and
        what `trial` raises; without that, compiling it should end.
        """
        with self._lock:
            vocabulary = self._vocabulary
            if vocabulary is None:
                raise InvalidRequestError(
                    f"{structured.param}: structured output does not work with this model's tokenizer",
                    structured.param,
                    "unsupported_parameter",
                )
        if (known := self.known(structured)) is not None:
            return known
        grammar = _compiled(structured, vocabulary, trial)
        with self._lock:
            self._grammars[structured] = grammar
            self._grammars.move_to_end(structured)
            while len(self._grammars) > 1 and self._is_too_much():
                self._grammars.popitem(last=False)
        return grammar

    @property
    def vocabulary(self) -> dict[str, Any] | None:
        """What GrammarTrial wants to know. None if the library cannot read the tokenizer."""
        with self._lock:
            known = self._vocabulary
        return None if known is None else {**known.arguments, "max_lexer_states": _MAX_LEXER_STATES}

    def known(self, structured: StructuredOutput) -> Grammar | None:
        """One that was compiled before, at once."""
        with self._lock:
            if (known := self._grammars.get(structured)) is None or known.is_spoiled:
                return None
            self._grammars.move_to_end(structured)
            return known

    def _is_too_much(self) -> bool:
        kept_s = sum(grammar.compile_s for grammar in self._grammars.values())
        return len(self._grammars) > _MAX_GRAMMARS or kept_s > _MAX_KEPT_S

    @cached_property
    def _vocabulary(self) -> GrammarVocabulary | None:
        try:
            return GrammarVocabulary(self._tokenizer, vocab_size=self._vocab_size, eos_token_ids=self._eos_token_ids)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # what the library does not expect of a tokenizer comes as a panic, which is no Exception
            _logger.exception("no structured output: the grammar library cannot read this model's tokenizer")
            return None


def _compiled(structured: StructuredOutput, vocabulary: GrammarVocabulary, trial: GrammarTrial | None) -> Grammar:
    param, kind = structured.param, structured.kind
    if len(structured.spec) > _MAX_SPEC_CHARS:
        raise InvalidRequestError(
            f"{param} must have at most {_MAX_SPEC_CHARS} characters, not {len(structured.spec)}", param
        )
    try:
        source, forces = _source(structured)
        if structured.preface is not None:
            source = behind(structured.preface, source, vocabulary.tokenizer)
    except Exception as error:
        raise InvalidRequestError(f"{param} is no valid {kind}: {str(error)[:_SHOWN_CHARS]}", param) from None
    if trial is not None and not trial.passes(source):
        raise InvalidRequestError(
            f"{param} takes more than {TRIAL_CPU_S} s or {TRIAL_MEMORY_BYTES >> 20} MiB to compile, or is nested too "
            f"deeply: make it simpler",
            param,
        )
    grammar = Grammar(
        lambda: LLMatcher(vocabulary.tokenizer, source, log_level=0, limits=_limits()), vocabulary, forces=forces
    )
    matcher = grammar.matcher()
    if matcher.is_error():
        raise InvalidRequestError(f"{param} is no valid {kind}: {error_of(matcher)}", param)
    if matcher.is_stopped() or not vocabulary.goes_on(grammar.start_mask):
        raise InvalidRequestError(f"{param} allows no text at all", param)
    return grammar


def _source(structured: StructuredOutput) -> tuple[str, bool]:
    """The library's grammar, and whether it may look for bytes that must come. What it raises says what is wrong."""
    spec = structured.spec
    if structured.kind == "regex":
        return LLMatcher.grammar_from_regex(spec), True
    if structured.kind == "grammar":
        text = spec.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        return unforced(LLMatcher.grammar_from_lark(gbnf.lark_of(text) if gbnf.is_gbnf(text) else text)), False
    if structured.kind == "choice":
        # A terminal, of which one may have thousands; rules with that many alternatives are too much for the parser.
        one_of = " | ".join(json.dumps(one) for one in json.loads(spec))
        return LLMatcher.grammar_from_lark(f"start: ONE\nONE: {one_of}"), True
    schema = {"type": "object"} if structured.kind == "json_object" else json.loads(spec)
    if not isinstance(schema, dict):
        raise ValueError("it must be a JSON object")
    options = schema.get(SCHEMA_OPTIONS, {})
    options = options if isinstance(options, dict) else {}
    chosen = not options.keys().isdisjoint(("whitespace_flexible", "whitespace_pattern"))
    source = LLMatcher.grammar_from_json_schema(schema, defaults=None if chosen else _DEFAULTS)
    own = {(name, value) for name, value in options.items() if isinstance(value, str)} - _PLAIN
    if all(name == "whitespace_pattern" and _BLANKS.fullmatch(value) for name, value in own):
        return source, True
    return unforced(source), False


def _limits() -> LLParserLimits:
    return LLParserLimits(verbose_errors=False, max_lexer_states=_MAX_LEXER_STATES)
