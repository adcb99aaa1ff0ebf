"""Requests and pools at the edge of what there is room for: B12 and B13."""

import asyncio
from typing import Any

import pytest
import torch
from engine_app import EngineApp, Http, chunks_of
from engine_helpers import make_request, plain_reply, run
from fakes import EOS, FakeRunner, FakeTokenizer, looping_model
from scripted_engine import modelled
from tiny_models import tiny_model

from goose.policies.registry import POLICIES
from goose.speculator import Speculator
from goose_ray.config import EngineConfig
from goose_ray.engine.engine import Engine
from goose_ray.errors import ConfigError, InvalidRequestError
from goose_ray.runner.local import LocalRunner

MODEL = looping_model(256)
# What a request may come to, and what the pool holds besides for drafts.
LIMIT, ROOM_FOR_DRAFTS = 100, 64
SPECIALS = (EOS,)


def engine_at_its_limit(policy: str = "goose") -> Engine:
    return modelled(
        MODEL,
        Speculator(policy=policy, budget=60, harvest_k=4),
        num_slots=LIMIT + ROOM_FOR_DRAFTS,
        max_model_len=LIMIT,
        budget=60,
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("as_text", [False, True])
def test_b12_a_prompt_too_long_but_within_the_room_for_drafts(stream: bool, as_text: bool) -> None:
    # TensorRT-LLM 16826
    lengths = [1, LIMIT - 2, LIMIT - 1, LIMIT, LIMIT + 1, LIMIT + 59, LIMIT + 60, LIMIT + 64, LIMIT + 65, 3 * LIMIT]

    async def scenario(http: Http) -> dict[int, int]:
        beside: dict[str, Any] = {"prompt": "beside", "temperature": 0, "max_tokens": 80, "ignore_eos": True}
        streaming = asyncio.create_task(http.post("/v1/completions", json={"model": "tiny", "stream": True, **beside}))
        statuses = {}
        for length in lengths:
            prompt = "x" * length if as_text else [120] * length
            body = {"model": "tiny", "prompt": prompt, "max_tokens": 1, "stream": stream}
            response = await http.post("/v1/completions", json=body)
            statuses[length] = response.status_code
            if response.status_code != 200:
                error = response.json()["error"]
                assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
        text = "".join(event["choices"][0]["text"] for event in chunks_of((await streaming).content))
        assert text == (await http.whole("/v1/completions", **beside))["choices"][0]["text"]
        assert (await http.get("/health")).status_code == 200
        return statuses

    with EngineApp.serving(engine_at_its_limit()) as app:
        assert app.run(scenario) == {length: 200 if length < LIMIT else 400 for length in lengths}
        app.loop.check_health()


@pytest.mark.parametrize("num_prompt", [1, 40, LIMIT - 9, LIMIT - 1])
def test_b12_the_limit_is_reached_exactly_and_not_passed(num_prompt: int) -> None:
    """Whole trees would not fit behind the prompt; the reply goes up to the limit all the same."""
    with EngineApp.serving(engine_at_its_limit()) as app:
        body = {"prompt": [65, 66, 67] * 33 + [65], "temperature": 0, "ignore_eos": True}
        body["prompt"] = body["prompt"][:num_prompt]  # type: ignore[index]
        room = LIMIT - num_prompt
        whole = app.whole("/v1/completions", **body, max_tokens=room)
        assert (whole["usage"]["total_tokens"], whole["choices"][0]["finish_reason"]) == (LIMIT, "length")
        response = app.run(
            lambda http: http.post("/v1/completions", json={"model": "tiny", **body, "max_tokens": room + 1})
        )
        assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("extra", [0, 1, 59, 64, 65])
def test_b12_a_chat_too_long(extra: int) -> None:
    with EngineApp.serving(engine_at_its_limit()) as app:
        templated = len(FakeTokenizer().apply_chat_template([{"role": "user", "content": ""}]))
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "x" * (LIMIT - templated + extra)}],
            "max_tokens": 1,
        }
        response = app.run(lambda http: http.post("/v1/chat/completions", json=body))
        assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")
        assert app.whole("/v1/chat/completions", messages=[{"role": "user", "content": "Hi"}], max_tokens=2)


def test_b12_what_the_pool_cannot_hold_is_refused_and_what_it_just_holds_is_served() -> None:
    engine = modelled(MODEL, Speculator(policy="goose", harvest_k=2), num_slots=64)
    assert engine.max_model_len == 64
    with pytest.raises(InvalidRequestError, match="KV cache holds 64 tokens, but 65 were requested"):
        engine.add_request(make_request(prompt=[1] * 60, max_tokens=5))
    request = make_request(prompt=[1] * 60, max_tokens=4)
    assert run(engine, request)["r"].visible == plain_reply(MODEL, request, FakeTokenizer(specials=SPECIALS))


@pytest.mark.parametrize("num_slots", [0, 1, 7])
def test_b13_a_pool_too_small_for_anything_is_refused_by_its_name(num_slots: int) -> None:
    # sglang 36495
    with pytest.raises(ConfigError, match=f"kv_cache_tokens must be at least 8, not {num_slots}"):
        LocalRunner(tiny_model("llama"), model_id="llama", num_slots=num_slots)


@pytest.mark.parametrize("num_slots", [8, 9, 10, 16, 17])
def test_b13_a_pool_of_exactly_one_request(num_slots: int) -> None:
    runner = LocalRunner(tiny_model("llama"), model_id="llama", num_slots=num_slots)
    prompt = (17, 40, 17, 40)
    expected = tiny_model("llama").generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=num_slots - len(prompt)
    )
    for policy in POLICIES:
        engine = Engine(runner, Speculator(policy=policy), FakeTokenizer(), EngineConfig(policy=policy, budget=60))
        request = make_request(prompt=prompt, max_tokens=num_slots - len(prompt))
        for _ in range(2):
            # From the cache the second time.
            assert [*prompt, *run(engine, request)["r"].token_ids] == expected[0].tolist()


@pytest.mark.parametrize("policy", ["suffix", "anisotropic"])
def test_b13_a_pool_of_past_outputs_of_any_capacity(policy: str) -> None:
    """Smaller than a text, as large as one, as deep as the longest pattern, and one more or less."""
    requests = [make_request(str(i), [i + 1, 2, 3], max_tokens=40) for i in range(3)]
    expected = {r.request_id: plain_reply(MODEL, r, FakeTokenizer(specials=SPECIALS)) for r in requests}
    for pool_tokens in (0, 1, 8, 9, 39, 40, 41, 43, 64, 65, 129):
        engine = modelled(MODEL, Speculator(policy=policy, budget=16, harvest_k=2, pool_tokens=pool_tokens))
        for request in requests:
            assert run(engine, request)[request.request_id].visible == expected[request.request_id]
        assert engine.stats().num_draft_errors == 0


@pytest.mark.parametrize("max_batch_rows", [8, 9, 60, 61])
@pytest.mark.parametrize("budget", [1, 2, 8, 60])
def test_b13_a_batch_of_no_more_rows_than_a_tree_or_than_requests(max_batch_rows: int, budget: int) -> None:
    config = EngineConfig(budget=budget, max_batch_rows=max_batch_rows, max_running_requests=max_batch_rows + 1)
    if budget > max_batch_rows:
        with pytest.raises(ConfigError, match=f"engine.budget: must be at most engine.max_batch_rows .*{budget}"):
            config.check_choices()
    requests = [make_request(str(i), [i + 1, 2, 3], max_tokens=12) for i in range(max_batch_rows + 2)]
    engine = Engine(
        FakeRunner(MODEL, vocab_size=256, num_slots=256),
        Speculator(policy="goose", budget=budget, harvest_k=2),
        FakeTokenizer(specials=SPECIALS),
        config,
    )
    for name, reply in run(engine, *requests).items():
        assert reply.visible == plain_reply(MODEL, requests[int(name)], FakeTokenizer(specials=SPECIALS))


def test_b13_more_successors_wanted_than_there_are_tokens() -> None:
    runner = LocalRunner(tiny_model("llama", vocab_size=8), model_id="small", num_slots=64)
    expected = tiny_model("llama", vocab_size=8).generate(torch.tensor([[1, 2, 3]]), do_sample=False, max_new_tokens=9)
    for policy in POLICIES:
        engine = Engine(runner, Speculator(policy=policy, harvest_k=10), FakeTokenizer(), EngineConfig(budget=60))
        assert run(engine, make_request(max_tokens=9))["r"].token_ids == expected[0, 3:].tolist()
        assert engine.stats().num_draft_errors == 0
