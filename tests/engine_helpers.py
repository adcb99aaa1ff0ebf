"""What the tests of the engine share: a speculator that knows the answers, requests, runs, the plain output."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from fakes import EOS, FakeRunner, FakeTokenizer, NextToken, looping_model

from goose.calibration import AcceptanceTable
from goose.observation import Harvest, TreeOutcome
from goose.tree import FloatArray, IntArray, TokenTree, TreeBatch
from goose_ray.config import EngineConfig
from goose_ray.engine.drafting import BatchSpeculator
from goose_ray.engine.engine import Engine
from goose_ray.engine.logprobs import TokenLogprobs
from goose_ray.engine.request import GenerationRequest, RequestOutput
from goose_ray.engine.sampling_params import SamplingParams

__all__ = ["Reply", "ScriptedSpeculator", "make_engine", "make_request", "plain_reply", "run"]


@dataclass
class ScriptedSpeculator:
    """Drafts a chain that is right for `num_right` tokens (all of them if None), then wrong ones up to `length`.

    `siblings` adds that many wrong nodes under the anchor, and a second copy of the right one. `model` is the runner's.
    """

    model: NextToken
    length: int = 8
    num_right: int | None = None
    siblings: int = 0
    vocab_size: int = 64
    harvest_k: int = 0
    needs_prompts: bool = True
    policies: tuple[str, ...] = ("scripted",)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    num_prompt: dict[str, int] = field(default_factory=dict)
    outcomes: list[TreeOutcome] = field(default_factory=list)
    harvests: list[Harvest] = field(default_factory=list)
    stop_token_ids: dict[str, frozenset[int]] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)

    def start_request(
        self,
        request_id: str,
        prompt_ids: Sequence[int] | IntArray,
        *,
        stop_token_ids: Iterable[int] = (),
        cache_salt: str | None = None,
        policy: str | None = None,
        budget: int | None = None,
    ) -> None:
        assert request_id not in self.tokens, f"{request_id} started twice"
        self.tokens[request_id] = [int(token) for token in prompt_ids]
        self.num_prompt[request_id] = len(prompt_ids)
        self.stop_token_ids[request_id] = frozenset(stop_token_ids)
        self.started.append(request_id)

    def propose(
        self,
        request_ids: Sequence[str],
        *,
        max_draft_depths: Sequence[int],
        max_nodes: int,
        step_seconds: FloatArray | None = None,
    ) -> TreeBatch:
        share = max_nodes // len(request_ids)
        return TreeBatch(
            tuple(
                self._tree(request_id, depth, share)
                for request_id, depth in zip(request_ids, max_draft_depths, strict=True)
            )
        )

    def observe(self, outcomes: Sequence[TreeOutcome], harvest: Harvest | None) -> list[dict[str, tuple[int, int]]]:
        self.outcomes.extend(outcomes)
        if harvest is not None:
            self.harvests.append(harvest)
        for outcome in outcomes:
            self.tokens[outcome.request_id].extend(outcome.committed_ids.tolist())
        return [{"script": (outcome.tree.num_draft_nodes, len(outcome.accepted_nodes))} for outcome in outcomes]

    def stop_request(self, request_id: str) -> None:
        del self.tokens[request_id]

    def counters(self) -> AcceptanceTable:
        return AcceptanceTable()

    def _tree(self, request_id: str, max_depth: int, max_nodes: int) -> TokenTree:
        history = list(self.tokens[request_id])
        position = len(history) - self.num_prompt[request_id]
        token_ids, parents = [history[-1]], [-1]
        greedy = SamplingParams(temperature=0.0)
        for depth in range(1, min(self.length, max_depth, max_nodes - 1) + 1):
            right = self.model(history, greedy, position + depth - 1)
            wrong = (right + 1) % self.vocab_size
            parents.append(len(token_ids) - 1)
            token_ids.append(right if self.num_right is None or depth <= self.num_right else wrong)
            history.append(token_ids[-1])
        if len(token_ids) > 1:
            for sibling in range(min(self.siblings, max_nodes - len(token_ids))):
                token_ids.append((token_ids[1] + sibling) % self.vocab_size)
                parents.append(0)
        return TokenTree.from_parents(token_ids, parents)


def make_request(
    request_id: str = "r",
    prompt: Sequence[int] = (1, 2, 3),
    *,
    policy: str | None = None,
    temperature: float = 0.0,
    max_tokens: int = 16,
    seed: int = 0,
    stop: tuple[str, ...] = (),
    stop_token_ids: tuple[int, ...] = (),
    ignore_eos: bool = False,
) -> GenerationRequest:
    sampling = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        stop=stop,
        stop_token_ids=stop_token_ids,
        ignore_eos=ignore_eos,
    )
    return GenerationRequest(request_id=request_id, prompt_token_ids=tuple(prompt), sampling=sampling, policy=policy)


def make_engine(
    model: NextToken | None = None,
    speculator: BatchSpeculator | None = None,
    *,
    runner: FakeRunner | None = None,
    tokenizer: FakeTokenizer | None = None,
    clock: Callable[[], float] = time.monotonic,
    **config: int,
) -> Engine:
    """By default everything the model says is drafted, and right."""
    model = model or looping_model()
    return Engine(
        runner or FakeRunner(model),
        speculator or ScriptedSpeculator(model),
        tokenizer or FakeTokenizer(specials=(EOS,)),
        EngineConfig.model_validate(config),
        clock=clock,
    )


@dataclass
class Reply:
    """All that one request was given."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    last: RequestOutput | None = None
    ids_before_each_output: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, output: RequestOutput) -> None:
        assert self.finish_reason is None, f"{output.request_id} goes on after its end"
        self.ids_before_each_output.append(tuple(self.token_ids))
        self.text += output.text
        self.token_ids += output.token_ids
        if output.prompt_logprobs is not None:
            assert self.last is None, f"{output.request_id} has its prompt scored late or twice"
            self.prompt_logprobs = output.prompt_logprobs
        if output.logprobs is not None:
            self.logprobs = [*(self.logprobs or ()), *output.logprobs]
        self.finish_reason = output.finish_reason
        self.stop_reason = output.stop_reason
        self.last = output

    @property
    def visible(self) -> tuple[str, list[int], str | None, str | int | None]:
        return self.text, self.token_ids, self.finish_reason, self.stop_reason


def run(engine: Engine, *requests: GenerationRequest, max_steps: int = 10_000) -> dict[str, Reply]:
    """Adds the requests and steps until all are done."""
    replies = {request.request_id: Reply() for request in requests}
    for request in requests:
        engine.add_request(request)
    for _ in range(max_steps):
        if not engine.has_work:
            break
        for output in engine.step():
            replies[output.request_id].add(output)
        engine.check_integrity()
    assert not engine.has_work, f"not done after {max_steps} steps"
    assert engine.stats().kv_slots_used == 0
    return replies


def plain_reply(
    model: NextToken, request: GenerationRequest, tokenizer: FakeTokenizer, eos_token_ids: Iterable[int] = (EOS,)
) -> tuple[str, list[int], str, str | int | None]:
    """What a request must be given: one token after another, in a loop that has nothing to do with the engine."""
    sampling, history, output = request.sampling, list(request.prompt_token_ids), list[int]()
    eos = () if sampling.ignore_eos else tuple(eos_token_ids)
    while len(output) < sampling.max_tokens:
        token = model(history, sampling, len(output))
        output.append(token)
        history.append(token)
        if token in eos or token in sampling.stop_token_ids:
            return tokenizer.decode(output[:-1]), output, "stop", None if token in eos else token
        text = tokenizer.decode(output)
        if found := [(text.index(stop) + len(stop), text.index(stop), stop) for stop in sampling.stop if stop in text]:
            _, start, stop = min(found)
            kept = next(n for n in range(len(output) + 1) if len(tokenizer.decode(output[:n])) >= start)
            return text[:start], output[:kept], "stop", stop
    return tokenizer.decode(output), output, "length", None
