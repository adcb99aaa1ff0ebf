"""From a request to the sequence that the engine runs: looked at, its rules and grammar made, nothing kept.

Knows neither who else is served nor where the sequence waits.
"""

from goose_ray.engine.admission import AdmissionRules
from goose_ray.engine.delivery import OutputStream
from goose_ray.engine.grammar import Grammar, GrammarState
from goose_ray.engine.grammar_compiler import GrammarCompiler
from goose_ray.engine.logit_rules import LogitRules
from goose_ray.engine.request import GenerationRequest
from goose_ray.engine.sequence import SequenceState
from goose_ray.engine.step import ModelSpec
from goose_ray.engine.tokenizer import Tokenizer

__all__ = ["Intake"]


class Intake:
    """`max_model_len` is the configuration's limit, None for the model's own."""

    def __init__(
        self, spec: ModelSpec, tokenizer: Tokenizer, *, policies: tuple[str, ...], max_model_len: int | None
    ) -> None:
        self._spec = spec
        self._tokenizer = tokenizer
        self._rules = AdmissionRules(
            policies=policies,
            vocab_size=spec.vocab_size,
            max_model_len=min(spec.max_model_len, max_model_len or spec.max_model_len),
            num_slots=spec.num_slots,
        )
        self.grammars = GrammarCompiler(tokenizer, vocab_size=spec.vocab_size, eos_token_ids=spec.eos_token_ids)

    @property
    def max_request_tokens(self) -> int:
        """Prompt and max_tokens of one request together."""
        return self._rules.max_request_tokens

    def check(self, request: GenerationRequest) -> None:
        """Raises InvalidRequestError if it can never be served."""
        self._rules.check(request)

    def sequence(self, request: GenerationRequest, *, arrived_s: float, grammar: Grammar | None) -> SequenceState:
        """Of a request that was checked. `grammar` is what `grammars` made of its structured output; without it that
        is done here. Raises InvalidRequestError if it cannot be.
        """
        structured = request.sampling.structured
        if structured is not None and grammar is None:
            grammar = self.grammars.compile(structured)
        output = OutputStream(
            self._tokenizer,
            request.sampling,
            self._spec.eos_token_ids,
            shown_token_ids=request.shown_token_ids,
        )
        return SequenceState(
            request,
            output,
            arrived_s=arrived_s,
            logit_rules=LogitRules.of(request, output.rules.end_token_ids, self._spec.vocab_size),
            grammar=None if grammar is None else GrammarState(grammar),
        )
