"""Everything at once: whatever shares the engine, is drafted, preempted, cancelled or cached, replies are plain ones.

Episodes are drawn from their seed. Most run on a table of logits, where every slot is checked and equality is exact; a
few on tiny models. `GOOSE_EPISODES` sets how many of the first kind.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

import pytest
import torch
from engine_helpers import Reply
from fakes import EOS, FakeRunner, FakeTokenizer
from tiny_models import VOCAB_SIZE, tiny_model

from goose.cost import CostModel, StepShape
from goose.speculator import Speculator
from goose.verify import VerifiedPath
from goose_ray.config import EngineConfig
from goose_ray.engine.engine import Engine
from goose_ray.engine.logprobs import TokenLogprobs
from goose_ray.engine.request import GenerationRequest
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.engine.step import HarvestRows, ModelRunner, StepBatch, StepOutput
from goose_ray.runner.local import LocalRunner
from goose_ray.runner.logprobs import path_logprobs
from goose_ray.runner.verification import RowScores, score_rows, verify_trees

EPISODES = int(os.environ.get("GOOSE_EPISODES", "32"))
POLICIES = Speculator().policies
MAX_LEN = 90
# Few classes of tokens, so that texts repeat themselves and drafts are often right.
NUM_CLASSES = 11
TABLE = 3.0 * torch.randn(NUM_CLASSES**2, VOCAB_SIZE, generator=torch.Generator().manual_seed(0))
# Tokens of several characters, of a part of one, of none.
PIECES = [b"a", b"b", b"ab", b"bca", b" c", b"\xc3", b"\xa9", b"", b"\xe2\x82", b"\xac", "é".encode()]
ALPHABET = "abc é"


class PieceTokenizer(FakeTokenizer):
    def _bytes(self, token: int) -> bytes:
        return b"" if token == EOS else PIECES[token % len(PIECES)]


class TableRunner(FakeRunner):
    """Logits by the last two tokens; what is chosen of them, and how, is the real runner's part."""

    def __init__(self, num_slots: int) -> None:
        super().__init__(vocab_size=VOCAB_SIZE, num_slots=num_slots, max_model_len=MAX_LEN)
        self._scores: RowScores | None = None

    def execute(self, batch: StepBatch) -> StepOutput:
        output = super().execute(batch)
        assert self._scores is not None
        logits, index = self._scores.kept_logits, self._scores.kept_index
        logprobs = path_logprobs(logits, index, batch.sequences, output.paths)
        return replace(output, logprobs=logprobs, prompt_logprobs=self._scores.prompt_logprobs)

    def _verify(self, batch: StepBatch) -> tuple[VerifiedPath | None, ...]:
        tails = [
            self._tail(batch, step, row) for step in batch.sequences for row in range(step.row_start, step.row_end)
        ]
        codes = [(tail[-2] if len(tail) > 1 else 0, tail[-1]) for tail in tails]
        hidden = torch.tensor([[a % NUM_CLASSES * NUM_CLASSES + b % NUM_CLASSES] for a, b in codes])
        self._scores = score_rows(batch, hidden, lambda rows: TABLE[rows[:, 0]])
        return verify_trees(batch, self._scores)

    def _harvest(self, batch: StepBatch) -> HarvestRows | None:
        assert self._scores is not None
        return self._scores.harvest


@dataclass
class Episode:
    """What one seed came to."""

    random: Random
    runner: ModelRunner
    tokenizer: PieceTokenizer = field(default_factory=lambda: PieceTokenizer(specials=(EOS,)))

    def __post_init__(self) -> None:
        random = self.random
        budget = random.choice(["auto", "auto", 1, 2, 8, 60, 256])
        config = EngineConfig.model_validate(
            {
                "budget": budget,
                "policy": random.choice(POLICIES),
                "prefix_cache": random.random() < 0.8,
                "max_batch_rows": random.choice([8, 9, 31, 512]),
                "max_running_requests": random.choice([1, 3, 40]),
            }
        )
        nodes = config.budget if isinstance(config.budget, int) else None
        speculator = Speculator(policy=config.policy, budget=nodes, pool_tokens=99)
        self.cost = CostModel(max_rows=config.max_batch_rows)
        for _ in range(random.choice([0, 1, 20])):
            shape = StepShape(random.randint(1, config.max_batch_rows), 1, 50, 100)
            self.cost.observe(shape, 10 ** random.uniform(-6, 0))
        self.engine = Engine(self.runner, speculator, self.tokenizer, config, cost=self.cost, clock=self.clock)
        self.now = 0.0
        self.requests: dict[str, GenerationRequest] = {}
        self.replies: dict[str, Reply] = {}
        self.texts: list[tuple[int, ...]] = [tuple(self.tokens(random.randint(1, MAX_LEN))) for _ in range(2)]

    def clock(self) -> float:
        self.now += 10 ** self.random.uniform(-6, 0)
        return self.now

    def tokens(self, count: int) -> list[int]:
        return [self.random.randrange(VOCAB_SIZE) for _ in range(count)]

    def prompt(self) -> tuple[int, ...]:
        random, text = self.random, self.random.choice(self.texts)
        shared = text[: random.choice([len(text), random.randint(0, len(text))])]
        prompts = [shared, (*shared, *self.tokens(5)), self.tokens(3) * random.randint(1, 20), (EOS, EOS)]
        return tuple(random.choice(prompts)[: self.engine.max_model_len - 1]) or (1,)

    def sampling(self, room: int) -> SamplingParams:
        random = self.random
        max_tokens = random.choice([1, room, random.randint(1, room), min(room, random.randint(1, 20))])
        stops = ["".join(random.choices(ALPHABET, k=random.randint(1, 4))) for _ in range(random.choice([0, 0, 1, 3]))]
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=random.choice([0.0, 0.0, 0.7, 2.0]),
            top_p=random.choice([1.0, 0.9, 0.3]),
            top_k=random.choice([0, -1, 1, 3, 40]),
            min_p=random.choice([0.0, 0.0, 0.1]),
            repetition_penalty=random.choice([1.0, 1.0, 1.3]),
            frequency_penalty=random.choice([0.0, 0.0, 1.0, -2.0]),
            presence_penalty=random.choice([0.0, 0.0, 0.5]),
            logit_bias=random.choice([(), (), ((7, 3.0), (8, -100.0))]),
            seed=random.choice([0, 1, 2**63 - 1]),
            stop=tuple(stops),
            stop_token_ids=tuple(random.sample(range(VOCAB_SIZE), random.choice([0, 0, 20]))),
            ignore_eos=random.random() < 0.4,
            min_tokens=random.choice([0, 0, random.randint(0, max_tokens)]),
            include_stop_str_in_output=random.random() < 0.3,
            logprobs=random.choice([None, None, 0, 5]),
            prompt_logprobs=random.choice([None, None, None, 2]),
        )

    def arrive(self, request_id: str, plain: Callable[[GenerationRequest], Reply]) -> None:
        """Two choices of one prompt, or one alone; some have been begun elsewhere."""
        random, prompt = self.random, self.prompt()
        sampling = self.sampling(self.engine.max_model_len - len(prompt))
        for choice in range(random.choice([1, 1, 2])):
            request = GenerationRequest(
                request_id=f"{request_id}.{choice}",
                prompt_token_ids=prompt,
                sampling=replace(sampling, seed=sampling.seed + choice),
                policy=random.choice([None, *POLICIES]),
                cache_salt=random.choice([None, None, "a"]),
                priority=random.choice([0, 0, -1]),
            )
            # An id is used again once its request has ended.
            if request.request_id not in self.requests:
                self.engine.add_request(self.begun(request, plain) if random.random() < 0.2 else request)
                self.requests[request.request_id], self.replies[request.request_id] = request, Reply()

    def begun(self, request: GenerationRequest, plain: Callable[[GenerationRequest], Reply]) -> GenerationRequest:
        """As it comes when another engine has delivered some of it."""
        if request.sampling.logprobs is not None:
            return request
        committed_ids = self.random.choice(plain(request).ids_before_each_output)
        if committed_ids and isinstance(self.runner, FakeRunner):
            self.runner.expect(request.request_id, (*request.prompt_token_ids, *committed_ids))
        return replace(request, committed_ids=committed_ids)

    def end(self, request_id: str) -> tuple[GenerationRequest, Reply]:
        return self.requests.pop(request_id), self.replies.pop(request_id)

    def run(self, num_requests: int, plain: Callable[[GenerationRequest], Reply]) -> None:
        arrivals = sorted(self.random.randint(0, 25) for _ in range(num_requests))
        step = 0
        while arrivals or self.engine.has_work:
            while arrivals and arrivals[0] <= step:
                arrivals.pop(0)
                self.arrive(str(self.random.randrange(num_requests)), plain)
            if self.requests and self.random.random() < 0.03:
                request, reply = self.end(self.random.choice(sorted(self.requests)))
                self.engine.cancel(request.request_id)
                if isinstance(self.runner, FakeRunner):
                    self.runner.forget(request.request_id)
                expected = plain(request)
                assert reply.token_ids == expected.token_ids[: len(reply.token_ids)]
                assert expected.text.startswith(reply.text)
            step += 1
            assert step < 5000, "no end in sight"
            for output in self.engine.step():
                self.replies[output.request_id].add(output)
                if output.finish_reason:
                    request, reply = self.end(output.request_id)
                    check(reply, plain(request))
                    self.texts = [*self.texts[-3:], (*request.prompt_token_ids, *reply.token_ids)]
            self.engine.check_integrity()
        stats = self.engine.stats()
        assert not self.requests
        assert (stats.kv_slots_used, stats.num_requests_running, stats.num_requests_waiting) == (0, 0, 0)
        assert stats.num_draft_errors == 0


def plain_replies(runner: ModelRunner) -> Callable[[GenerationRequest], Reply]:
    """Of an engine that has nothing but the request, a token a step."""

    def plain(request: GenerationRequest) -> Reply:
        config = EngineConfig(policy="autoregressive", budget=1, prefix_cache=False)
        engine = Engine(runner, Speculator(policy="autoregressive", budget=1), PieceTokenizer(specials=(EOS,)), config)
        reply = Reply()
        engine.add_request(replace(request, policy=None, priority=0, cache_salt=None))
        while engine.has_work:
            for output in engine.step():
                reply.add(output)
        return reply

    return plain


def check(reply: Reply, expected: Reply) -> None:
    assert reply.visible == expected.visible
    assert scores(reply.logprobs) == pytest.approx(scores(expected.logprobs), abs=1e-3)
    assert scores(reply.prompt_logprobs) == pytest.approx(scores(expected.prompt_logprobs), abs=1e-3)
    assert reply.last is not None
    assert reply.last.stats.committed == len(reply.token_ids)


def scores(logprobs: list[TokenLogprobs] | tuple[TokenLogprobs, ...] | None) -> list[float]:
    return [value for one in logprobs or () for value in (one.token_id, one.logprob, *(value for _, value in one.top))]


@pytest.mark.parametrize("seed", range(EPISODES))
def test_replies_are_the_plain_ones_whatever_else_goes_on(seed: int) -> None:
    random = Random(seed)
    runner = TableRunner(random.choice([64, 80, 150, 400]))
    # Of the plain runs, each starts the request anew.
    Episode(random, runner).run(random.choice([1, 4, 8, 8, 24]), lambda q: plain_replies(TableRunner(MAX_LEN))(q))


@pytest.mark.parametrize("family", ["llama", "gemma3", "mistral", "qwen3"])
def test_so_are_those_of_models(family: str) -> None:
    random = Random(family)
    model, other = (
        LocalRunner(tiny_model(family), model_id=family, num_slots=num_slots, max_model_len=MAX_LEN)
        for num_slots in (80, 2 * MAX_LEN)
    )
    Episode(random, model).run(8, plain_replies(other))
