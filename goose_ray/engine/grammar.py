"""A compiled grammar, and the place that one request's output has come to in it.

The place is a function of the committed output tokens alone: it can be made anew from them at any time, and is, after
an error of the library while it looked at drafts. Knows no trees and no requests.

What the library keeps of a grammar has a limit, and all who use the grammar fill it, drafts too. An output that meets
it goes on with a grammar of its own, as it would have gone on alone and without drafts, where that takes no time.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from enum import Enum

from llguidance import LLMatcher

from goose_ray.engine.grammar_vocabulary import GrammarVocabulary, MaskArray

__all__ = ["Grammar", "GrammarState", "Place", "consume"]

_logger = logging.getLogger(__name__)
_SHOWN_CHARS = 300
# As many tokens are the beginnings of one text at most; more are not looked at.
_MOST_BEGINNINGS = 16
# While a batch waits: what a grammar may have taken to compile to be compiled anew, and how long its masks may take.
_LONGEST_ANEW_S = 0.05
_LONGEST_MASKS_S = 0.25
# The library's words for a token that may not come; no other matcher would take it.
_FORBIDDEN = "doesn't satisfy the grammar"


class Place(Enum):
    OPEN = "there are tokens that go on"
    COMPLETE = "nothing more can follow"
    STUCK = "something must follow, and no token can"


class Grammar:
    """May be shared by threads, and its requests share what the library learns of it."""

    def __init__(self, compile: Callable[[], LLMatcher], vocabulary: GrammarVocabulary, *, forces: bool) -> None:
        """`forces`: the library looks for bytes that must come, of which there must be an end."""
        self.vocabulary = vocabulary
        self._forces = forces
        self._compile = compile
        self._lock = threading.Lock()
        started_s = time.thread_time()
        self._matcher = compile()
        # [num_words] int32: what an output may begin with
        self.start_mask = vocabulary.mask(self._matcher)
        # of a processor
        self.compile_s = time.thread_time() - started_s
        # The library has failed or reached a limit in it, and might do so again for whoever comes next.
        self.is_spoiled = False

    def matcher(self) -> LLMatcher:
        """At the grammar's start."""
        with self._lock:
            return self._matcher.deep_copy()

    def anew(self) -> "Grammar | None":
        """The same for one output alone; None if others would wait too long for it."""
        if self.compile_s > _LONGEST_ANEW_S:
            return None
        return Grammar(self._compile, self.vocabulary, forces=self._forces)

    def forced(self, mask: MaskArray) -> int | None:
        """The token that is next if there is one text only: that one where the library has cut the text, else the
        longest, in whose place the model may choose a shorter one.
        """
        return self.vocabulary.forced(mask, most=1 if self._forces else _MOST_BEGINNINGS)

    def look(self, matcher: LLMatcher) -> tuple[Place, MaskArray]:
        """Where it is, and what may follow; the mask has a meaning where the place is open."""
        if matcher.is_stopped():
            mask = self.start_mask
        else:
            mask = self.vocabulary.mask(matcher)
            if not matcher.is_error() and self.vocabulary.goes_on(mask):
                return Place.OPEN, mask
        return Place.STUCK if matcher.is_error() or not matcher.is_accepting() else Place.COMPLETE, mask

    def go_back(self, matcher: LLMatcher, num_tokens: int) -> bool:
        """Takes back the tokens that it consumed last; false if the matcher is to be made anew.

        The library (from 1.5.1 on) gives its last mask again where the lexer's state and the number of the parser's
        rows are the same, although on another branch they may be other rows. A mask that is asked for at once takes
        that one's place: below here the number of rows is the same only where the rows are. It is not kept where the
        next bytes are forced, so there the old one would stay.
        """
        if not matcher.rollback(num_tokens) or (self._forces and matcher.compute_ff_bytes()):
            return False
        self.vocabulary.mask(matcher)
        return True


class GrammarState:
    """Mutable, owned by the engine's thread. At first the place is the grammar's start, which is open."""

    __slots__ = ("_grammar", "_token_ids", "has_all", "mask", "mask_s", "matcher", "place", "problem")

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._token_ids: list[int] = []
        # stands behind the committed tokens whenever nobody walks
        self.matcher = grammar.matcher()
        self.place = Place.OPEN
        # [num_words] int32: what may follow the committed tokens, while the place is open
        self.mask = grammar.start_mask
        # of a processor: what it took to find
        self.mask_s = 0.0
        # why it is stuck
        self.problem: str | None = None
        # false: the last token is one that it could not take
        self.has_all = True

    @property
    def grammar(self) -> Grammar:
        return self._grammar

    @property
    def is_forced(self) -> bool:
        """Whether there is one text only that may follow."""
        return self._grammar.forced(self.mask) is not None

    def advance(self, token_ids: Sequence[int]) -> None:
        """Commits output tokens. To be called while the place is open; raises nothing."""
        self._token_ids += token_ids
        self._take(token_ids)
        if self.place is Place.STUCK and _FORBIDDEN not in (self.problem or ""):
            self._grammar.is_spoiled = True
            try:
                self._go_on_alone()
            except Exception:
                _logger.exception("a grammar could not be made anew after %d tokens", len(self._token_ids))

    def _go_on_alone(self) -> None:
        for with_masks in (False, True):
            # it never leaves an error
            if not self.matcher.is_error() or (own := self._grammar.anew()) is None:
                return
            self._grammar, self.matcher = own, own.matcher()
            if with_masks:
                self._take_with_masks()
            else:
                self._take(self._token_ids)

    def _take(self, token_ids: Sequence[int]) -> None:
        self.problem = None
        try:
            self.has_all = consume(self.matcher, token_ids)
            started_s = time.thread_time()
            self.place, self.mask = self._grammar.look(self.matcher)
            self.mask_s = time.thread_time() - started_s
            if self.place is Place.STUCK:
                self.problem = error_of(self.matcher)
        except Exception as error:
            _logger.exception("a grammar failed after %d tokens", len(self._token_ids))
            self.place, self.problem = Place.STUCK, f"the grammar library failed: {error}"

    def _take_with_masks(self) -> None:
        """As plain decoding does."""
        started_s = time.thread_time()
        for token in self._token_ids:
            if time.thread_time() - started_s > _LONGEST_MASKS_S:
                self.place, self.problem = Place.STUCK, "the grammar takes too long"
            else:
                self._take([token])
            if self.place is not Place.OPEN:
                return

    def restore(self) -> None:
        """Makes the matcher anew, behind the committed tokens."""
        self.matcher = self._grammar.matcher()
        consume(self.matcher, self._token_ids)


def consume(matcher: LLMatcher, token_ids: Sequence[int]) -> bool:
    """False: it could not take one, and stays there. One at a time: what the library does in a call has a limit."""
    return all(matcher.consume_token(token) for token in token_ids)


def error_of(matcher: LLMatcher) -> str:
    """Why nothing can follow, in the library's words where it has any."""
    message, _, _ = matcher.get_error().partition("\n<")
    if message in ("", "NoExtensionBias"):
        return "no token of the model can follow"
    return message if len(message) <= _SHOWN_CHARS else f"{message[:_SHOWN_CHARS]}..."
