"""The engine as a state machine: whatever comes, goes, is drafted or is short of room, every reply is the plain one.

The runner checks in every step that each sequence's slots hold exactly its own prefix, that no slot is used twice and
that the anchor is the last committed token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine_helpers import Reply, ScriptedSpeculator, make_engine, plain_reply
from fakes import EOS, FakeRunner, FakeTokenizer, looping_model
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from goose.speculator import Speculator
from goose_ray.engine.drafting import BatchSpeculator
from goose_ray.engine.engine import Engine
from goose_ray.engine.request import GenerationRequest
from goose_ray.engine.sampling_params import SamplingParams

# Tokens are bytes, so that stop strings can be hit; the model's alphabet is 1 .. 12.
MODEL = looping_model(eos_every=40)
POLICIES = Speculator().policies


@dataclass(frozen=True)
class Setting:
    policy: str
    budget: int
    num_slots: int
    max_batch_rows: int
    max_running_requests: int
    prefix_cache: bool

    def runner(self) -> FakeRunner:
        return FakeRunner(MODEL, num_slots=self.num_slots)

    def engine(self, runner: FakeRunner | None = None) -> Engine:
        speculator: BatchSpeculator
        if self.policy == "scripted":
            speculator = ScriptedSpeculator(MODEL, num_right=self.budget % 4, siblings=self.budget % 3, harvest_k=2)
        else:
            speculator = Speculator(policy=self.policy, budget=self.budget, harvest_k=4)
        return make_engine(
            MODEL,
            speculator,
            runner=runner or self.runner(),
            budget=self.budget,
            max_batch_rows=self.max_batch_rows,
            max_running_requests=self.max_running_requests,
            prefix_cache=self.prefix_cache,
        )


settings_of_engines = st.builds(
    Setting,
    policy=st.sampled_from([*POLICIES, "scripted"]),
    budget=st.sampled_from([1, 2, 5, 16, 60]),
    num_slots=st.integers(40, 120),
    max_batch_rows=st.integers(8, 40),
    max_running_requests=st.integers(1, 12),
    prefix_cache=st.sampled_from([True, True, False]),
)


@st.composite
def requests(
    draw: st.DrawFn,
    request_id: str,
    max_model_len: int,
    *,
    own_policy: bool = False,
    earlier: Sequence[tuple[int, ...]] = (),
) -> GenerationRequest:
    """Some go on from one of the `earlier` texts, as the next turn of a conversation does."""
    num_prompt = draw(st.integers(1, max_model_len - 1))
    max_tokens = draw(st.integers(1, max_model_len - num_prompt))
    # Short periods make drafts from the prompt right now and then.
    period = draw(st.lists(st.integers(1, 12), min_size=1, max_size=6))
    before: tuple[int, ...] = draw(st.sampled_from([(), *earlier]))
    sampling = SamplingParams(
        max_tokens=max_tokens,
        temperature=draw(st.sampled_from([0.0, 0.0, 0.8])),
        seed=draw(st.integers(0, 3)),
        stop=draw(st.sampled_from([(), (), ("\x03",), ("\x05\x04", "\x0b\x07")])),
        stop_token_ids=draw(st.sampled_from([(), (), (8,)])),
        ignore_eos=draw(st.booleans()),
    )
    return GenerationRequest(
        request_id=request_id,
        prompt_token_ids=(*before, *(period * num_prompt))[:num_prompt],
        sampling=sampling,
        policy=draw(st.sampled_from([None, *POLICIES])) if own_policy else None,
        cache_salt=draw(st.sampled_from([None, None, "a"])),
    )


def check(request: GenerationRequest, reply: Reply) -> None:
    assert reply.visible == plain_reply(MODEL, request, FakeTokenizer(specials=(EOS,)))
    assert reply.last is not None
    assert reply.last.stats.committed == len(reply.token_ids)
    assert reply.last.stats.accepted <= reply.last.stats.drafted


class EngineMachine(RuleBasedStateMachine):
    @initialize(setting=settings_of_engines)
    def start(self, setting: Setting) -> None:
        self.setting = setting
        self.runner = setting.runner()
        self.engine = setting.engine(self.runner)
        self.requests: dict[str, GenerationRequest] = {}
        self.replies: dict[str, Reply] = {}
        self.num_started = 0
        # prompts with their replies
        self.texts: list[tuple[int, ...]] = []

    @rule(data=st.data(), reuse=st.booleans())
    def arrive(self, data: st.DataObject, reuse: bool) -> None:
        # Ids are used again once their request has ended.
        self.num_started += 0 if reuse else 1
        request_id = str(self.num_started)
        assume(request_id not in self.requests)
        request = data.draw(
            requests(
                request_id,
                self.engine.max_model_len,
                own_policy=self.setting.policy != "scripted",
                earlier=self.texts,
            )
        )
        self.engine.add_request(request)
        self.requests[request_id], self.replies[request_id] = request, Reply()

    @rule(data=st.data())
    @precondition(lambda self: self.requests)
    def cancel(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.requests)))
        self.engine.cancel(request_id)
        self.runner.forget(request_id)
        # What it had until then was right.
        expected = plain_reply(MODEL, self.requests.pop(request_id), FakeTokenizer(specials=(EOS,)))
        reply = self.replies.pop(request_id)
        assert expected[1][: len(reply.token_ids)] == reply.token_ids
        assert expected[0].startswith(reply.text)

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            for output in self.engine.step():
                self.replies[output.request_id].add(output)
                if output.finish_reason:
                    request, reply = self.requests.pop(output.request_id), self.replies.pop(output.request_id)
                    check(request, reply)
                    self.texts = [*self.texts[-3:], (*request.prompt_token_ids, *reply.token_ids)]

    @invariant()
    def nothing_leaks(self) -> None:
        if hasattr(self, "engine"):
            self.engine.check_integrity()
            assert self.engine.has_work == bool(self.requests)
            assert self.engine.stats().num_draft_errors == 0

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        # Every step commits to the oldest or computes its prompt, so the work left bounds the steps; preempted
        # work is done again, by everyone ahead at most.
        work = sum(len(r.prompt_token_ids) + r.sampling.max_tokens for r in self.requests.values())
        steps = 0
        while self.engine.has_work:
            assert steps <= work * (1 + len(self.requests)), "no end in sight"
            self.step(1)
            steps += 1
        stats = self.engine.stats()
        assert (stats.kv_slots_used, stats.num_requests_running, stats.num_requests_waiting) == (0, 0, 0)


EngineMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestEngine = EngineMachine.TestCase


@given(data=st.data(), setting=settings_of_engines, count=st.integers(2, 8))
@settings(max_examples=60, deadline=None)
def test_every_request_ends_in_a_pool_that_holds_the_largest_alone(
    data: st.DataObject, setting: Setting, count: int
) -> None:
    engine = setting.engine()
    wanted = [data.draw(requests(str(number), engine.max_model_len)) for number in range(count)]
    replies = {request.request_id: Reply() for request in wanted}
    for request in wanted:
        engine.add_request(request)
    bound = count * sum(len(request.prompt_token_ids) + request.sampling.max_tokens for request in wanted)
    for _ in range(bound):
        for output in engine.step():
            replies[output.request_id].add(output)
        engine.check_integrity()
    assert not engine.has_work
    for request in wanted:
        check(request, replies[request.request_id])
