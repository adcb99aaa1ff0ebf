"""Continuing an answer on another replica: what was passed on goes along, and is left out of what comes back.

The other replica goes on behind those tokens with the request's seed, which every request has, as the first one would
have. Log-probabilities are not passed along, so an answer with them is run again from its start; a run that then gives
other tokens (numerics of unlike hardware) is refused rather than spliced, and so is one of another model. Knows nothing
about replicas.
"""

from dataclasses import replace

from goose_ray.api.calls import Delta, GenerateCall, PromptInfo
from goose_ray.errors import EngineDeadError

__all__ = ["SentAnswer"]


class SentAnswer:
    """What of one answer has been passed on, over all runs of its request."""

    def __init__(self) -> None:
        self._token_ids: list[int] = []
        # of the answer, and of the thinking before it
        self._num_chars = self._num_thought = 0
        # as passed on
        self._prompt: PromptInfo | None = None
        self._finished = False
        # where the run in progress is, in tokens and characters
        self._run_tokens = 0
        self._run_chars = self._run_thought = 0
        # what had been passed on when it began
        self._start = (0, 0, 0)

    @property
    def finished(self) -> bool:
        """The answer's end has been passed on."""
        return self._finished

    @property
    def advanced(self) -> bool:
        """The run in progress has brought something that was new."""
        return self._passed_on() != self._start

    def start_run(self, call: GenerateCall) -> GenerateCall:
        """A run of the request begins: what to call for it."""
        self._run_tokens = self._run_chars = self._run_thought = 0
        self._start = self._passed_on()
        if call.sampling.logprobs is not None:
            return call
        return replace(call, committed_ids=tuple(self._token_ids))

    def unsent(self, delta: Delta) -> Delta | None:
        """The part of the run's next delta that is new, None if there is none; it counts as passed on.

        Raises EngineDeadError if the run gives other tokens than those that were passed on, or is another model's.
        """
        if delta.prompt and self._prompt and delta.prompt.model_id != self._prompt.model_id:
            raise EngineDeadError(f"the replica died, and another one has another model: {delta.prompt.model_id}")
        known = self._token_ids[self._run_tokens : self._run_tokens + len(delta.token_ids)]
        if list(delta.token_ids[: len(known)]) != known:
            raise EngineDeadError("the replica died, and another one gives a different answer from the same seed")
        known_chars = min(len(delta.text), self._num_chars - self._run_chars)
        known_thought = min(len(delta.reasoning), self._num_thought - self._run_thought)
        self._run_tokens += len(delta.token_ids)
        self._run_chars += len(delta.text)
        self._run_thought += len(delta.reasoning)
        fresh = replace(
            delta,
            token_ids=delta.token_ids[len(known) :],
            text=delta.text[known_chars:],
            reasoning=delta.reasoning[known_thought:],
            scores=None if delta.scores is None else delta.scores[len(known) :],
            prompt=None if self._prompt else delta.prompt,
        )
        if not (fresh.token_ids or fresh.text or fresh.reasoning or fresh.prompt or fresh.finish_reason):
            return None
        self._token_ids.extend(fresh.token_ids)
        self._num_chars += len(fresh.text)
        self._num_thought += len(fresh.reasoning)
        self._prompt = self._prompt or delta.prompt
        self._finished = delta.finish_reason is not None
        return fresh

    def _passed_on(self) -> tuple[int, int, int]:
        return len(self._token_ids), self._num_chars, self._num_thought
