"""What a router is worth: recorded conversations over several replicas, each turn sent once the last one is answered.

Replicas are real engines without a model (`echo_replica.py`) on one virtual clock, so that a run depends on its seed
alone. Some conversations run at a time; the next one begins when one ends. A turn comes to one of several routers at
random, as to ingress processes behind a load balancer; they share nothing. All know the replicas' numbers of requests;
a replica takes `max_ongoing` of them, and who finds no place waits at the router, first come, first served.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

import numpy as np

from goose_ray.api.calls import ChatPrompt, GenerateCall
from goose_ray.bench.cluster.echo_replica import EchoReplica, Step, StepPrice
from goose_ray.bench.prompts import Conversation, Dialogue, encode
from goose_ray.config import EngineConfig
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.engine.tokenizer import Tokenizer
from goose_ray.routing.prefix_affinity import PrefixAffinity
from goose_ray.routing.prompt_key import PromptKey, prompt_key

__all__ = ["RouterName", "RouterRun", "Routing", "Turn", "turns_of"]

RouterName = Literal["prefix", "power_of_two"]


@dataclass(frozen=True, slots=True)
class Turn:
    key: PromptKey
    prompt: tuple[int, ...]
    reply: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """What came of a run. Seconds are virtual; a queue wait lasts from a turn's arrival to the step that begins it."""

    router: RouterName
    requests: int
    prompt_tokens: int
    # part of the prompt tokens that were in the prefix cache
    hit_rate: float
    queue_wait_p50_s: float
    queue_wait_p95_s: float
    first_token_p50_s: float
    first_token_p95_s: float
    # from the first arrival to the last token
    total_s: float
    requests_by_replica: tuple[int, ...]


def turns_of(dialogue: Dialogue, tokenizer: Tokenizer, *, max_prompt: int, max_reply: int) -> list[Turn]:
    """Every request of a conversation, with the recorded reply, cut to `max_reply` tokens."""
    turns: list[Turn] = []
    while (request := dialogue.request_after([""] * len(turns), chat=True)) is not None:
        assert isinstance(request, Conversation)
        call = GenerateCall(
            request_id="",
            prompt=ChatPrompt(request.messages, request.tools),
            sampling=SamplingParams(),
            clip_max_tokens=True,
        )
        prompt = encode(request, tokenizer, max_prompt).token_ids
        recorded = dialogue.messages[len(request.messages) :][:1]
        # Where no reply was recorded any text does: nothing follows it.
        reply = tokenizer.encode(str(recorded[0]["content"])) if recorded else []
        turns.append(Turn(prompt_key(call), prompt, tuple(reply[:max_reply]) or prompt[-max_reply:]))
    return turns


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterRun:
    replicas: int
    routers: int
    # conversations at a time, and the mean of the seconds between a reply and the next turn
    at_once: int
    think_s: float
    # of a replica
    max_ongoing: int
    engine: EngineConfig
    price: StepPrice
    max_model_len: int
    blocks_per_replica: int
    seed: int

    def measure(self, sessions: Sequence[Sequence[Turn]], tokenizer: Tokenizer, router: RouterName) -> Routing:
        return _Simulation(self, sessions, tokenizer, router).run()


@dataclass(slots=True)
class _Sent:
    """A turn under way."""

    session: int
    number: int
    arrived_s: float


class _Simulation:
    def __init__(
        self, run: RouterRun, sessions: Sequence[Sequence[Turn]], tokenizer: Tokenizer, router: RouterName
    ) -> None:
        self._run, self._router = run, router
        order = Random(run.seed)
        self._sessions = order.sample(list(sessions), len(sessions))
        # The same pauses for every router: they are drawn for the turns, not as these come.
        self._pauses = [[order.expovariate(1 / run.think_s) for _ in session] for session in self._sessions]
        self._routers = [_router(run, router, Random(f"{run.seed}/{number}")) for number in range(run.routers)]
        self._rng = Random(run.seed + 1)
        self._replicas = [
            EchoReplica(tokenizer, run.engine, run.price, max_model_len=run.max_model_len) for _ in range(run.replicas)
        ]
        self._taken = [0] * run.replicas
        self._loads = [0] * run.replicas
        self._is_busy = [False] * run.replicas
        self._held: deque[str] = deque()
        self._under_way: dict[str, _Sent] = {}
        self._waits: list[float] = []
        self._first_tokens: list[float] = []
        # (time, order of entry, what happens)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._entries = itertools.count()

    def run(self) -> Routing:
        self._next_session = min(self._run.at_once, len(self._sessions))
        for session in range(self._next_session):
            self._send_later(0.0, session, 0)
        now_s = 0.0
        while self._events:
            now_s, _, happens = heapq.heappop(self._events)
            happens(now_s)
        stats = [replica.stats for replica in self._replicas]
        queries = sum(one.prefix_cache_queries for one in stats)
        return Routing(
            router=self._router,
            requests=len(self._waits),
            prompt_tokens=queries,
            hit_rate=sum(one.prefix_cache_hits for one in stats) / queries,
            queue_wait_p50_s=_percentile(self._waits, 50),
            queue_wait_p95_s=_percentile(self._waits, 95),
            first_token_p50_s=_percentile(self._first_tokens, 50),
            first_token_p95_s=_percentile(self._first_tokens, 95),
            total_s=now_s,
            requests_by_replica=tuple(self._taken),
        )

    def _send_later(self, now_s: float, session: int, number: int) -> None:
        def arrive(at_s: float) -> None:
            request_id = f"{session}-{number}"
            self._under_way[request_id] = _Sent(session, number, at_s)
            self._held.append(request_id)
            self._route(at_s)

        self._at(now_s + self._pauses[session][number], arrive)

    def _route(self, now_s: float) -> None:
        while self._held and min(self._loads) < self._run.max_ongoing:
            request_id = self._held.popleft()
            sent = self._under_way[request_id]
            turn = self._sessions[sent.session][sent.number]
            choose = self._rng.choice(self._routers)
            number = choose(turn.key, self._loads)
            self._loads[number] += 1
            self._taken[number] += 1
            self._replicas[number].add(request_id, turn.prompt, turn.reply)
            self._start_step(now_s, number)

    def _start_step(self, now_s: float, number: int) -> None:
        """What a step does is known when it starts, and happens when it ends."""
        if self._is_busy[number] or not self._loads[number]:
            return
        self._is_busy[number] = True
        step = self._replicas[number].step()
        self._waits += [now_s - self._under_way[request_id].arrived_s for request_id in step.admitted]
        self._at(now_s + step.seconds, lambda at_s: self._end_step(at_s, number, step))

    def _end_step(self, now_s: float, number: int, step: Step) -> None:
        self._is_busy[number] = False
        self._first_tokens += [now_s - self._under_way[request_id].arrived_s for request_id in step.begun]
        self._loads[number] -= len(step.finished)
        for request_id in step.finished:
            sent = self._under_way.pop(request_id)
            if sent.number + 1 < len(self._sessions[sent.session]):
                self._send_later(now_s, sent.session, sent.number + 1)
            elif self._next_session < len(self._sessions):
                self._send_later(now_s, self._next_session, 0)
                self._next_session += 1
        self._route(now_s)
        self._start_step(now_s, number)

    def _at(self, time_s: float, happens: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time_s, next(self._entries), happens))


# (the prompt, each replica's number of requests) -> a replica with a place
_Choose = Callable[[PromptKey, Sequence[int]], int]


def _router(run: RouterRun, name: RouterName, rng: Random) -> _Choose:
    return _power_of_two(run, rng) if name == "power_of_two" else _prefix(run, rng)


def _prefix(run: RouterRun, rng: Random) -> _Choose:
    places = {f"replica-{number}": number for number in range(run.replicas)}
    affinity = PrefixAffinity(blocks_per_replica=run.blocks_per_replica, rng=rng)
    affinity.set_replicas(places)

    def choose(key: PromptKey, loads: Sequence[int]) -> int:
        while True:
            known = affinity.candidates(key)
            for name in affinity.ranked(key, known, {name: loads[places[name]] for name in known}):
                if loads[places[name]] < run.max_ongoing:
                    affinity.sent(key, name)
                    return places[name]

    return choose


def _power_of_two(run: RouterRun, rng: Random) -> _Choose:
    """As Ray Serve's default router: the less busy of two at random, either where they are alike."""

    def choose(_key: PromptKey, loads: Sequence[int]) -> int:
        while True:
            two = rng.sample(range(run.replicas), min(2, run.replicas))
            number = min(two, key=loads.__getitem__)
            if loads[number] < run.max_ongoing:
                return number

    return choose


def _percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent))
