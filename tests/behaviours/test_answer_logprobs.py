"""Log-probabilities of answers that were drafted: B6, B10 and B11."""

import itertools
from typing import Any

import pytest
import torch
from engine_app import EngineApp
from engine_helpers import Reply, run
from fakes import EOS, FakeTokenizer
from scripted_engine import forced
from tiny_models import VOCAB_SIZE, tiny_model

from goose.policies.registry import POLICIES
from goose.speculator import Speculator
from goose_ray.config import EngineConfig
from goose_ray.engine.engine import Engine
from goose_ray.engine.request import GenerationRequest
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.runner.local import LocalRunner

HA = 256
LAUGHING = [97, HA, HA, HA, 98, 99]
LENGTHS = (0, 1, 2, 3, 8)
PERIODIC = (17, 40, 8, 90, 17, 40, 8, 90, 17, 40, 8)
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("included", [False, True])
def test_b06_text_ids_and_logprobs_are_cut_at_the_same_place(length: int, included: bool) -> None:
    # vllm 47616
    sampling = SamplingParams(
        temperature=0.0, max_tokens=9, stop=(" ha ha ha",), logprobs=2, include_stop_str_in_output=included
    )
    request = GenerationRequest(request_id="r", prompt_token_ids=(1, 2, 3), sampling=sampling)
    reply = run(forced(LAUGHING, length=length, pieces=[" ha"]), request)["r"]
    kept = LAUGHING[: 4 if included else 1]
    assert reply.visible == ("a ha ha ha" if included else "a", kept, "stop", " ha ha ha")
    assert [one.token_id for one in reply.logprobs or ()] == kept


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("stop", "kept"), [("ha ha ha", 2), (" ha", 1), ("a", 0), ("ha ha hab", 2), ("c", 5)])
def test_b06_over_http_whole_and_streamed(length: int, stop: str, kept: int) -> None:
    """A token is delivered with the first character of its text; what follows the cut has no log-probability."""
    with EngineApp.serving(forced(LAUGHING, length=length, pieces=[" ha"])) as app:
        body = {"max_tokens": 6, "temperature": 0, "stop": stop, "return_token_ids": True}
        chat = app.whole("/v1/chat/completions", **CHAT, **body, logprobs=True)["choices"][0]
        assert chat["token_ids"] == LAUGHING[:kept]
        assert len((chat["logprobs"] or {"content": []})["content"]) == kept
        assert chat["message"]["content"] == "a ha ha habc"[: "a ha ha habc".index(stop)]
        text = app.whole("/v1/completions", prompt="Hi", **body, logprobs=1)["choices"][0]
        assert text["token_ids"] == LAUGHING[:kept]
        assert len(text["logprobs"]["tokens"]) == len(text["logprobs"]["token_logprobs"]) == kept
        events = app.streamed("/v1/completions", prompt="Hi", **body, logprobs=1)
        parts = [event["choices"][0]["logprobs"] for event in events]
        tokens = [name for part in parts if part for name in part["tokens"]]
        assert tokens == text["logprobs"]["tokens"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "asked",
    [
        {"logprobs": True, "top_logprobs": 0},
        {"logprobs": True},
        {"logprobs": True, "top_logprobs": None},
        {"logprobs": True, "top_logprobs": 0, "n": 2},
        {"logprobs": True, "top_logprobs": 20},
        {"logprobs": False, "top_logprobs": 0},
    ],
)
def test_b10_logprobs_without_alternatives(asked: dict[str, Any], stream: bool) -> None:
    # vllm 30059
    with EngineApp.serving(forced([97, 98, 99, EOS])) as app:
        if stream:
            events = app.streamed("/v1/chat/completions", **CHAT, **asked)
            found = [choice["logprobs"] for event in events for choice in event["choices"] if choice["index"] == 0]
            content = [one for part in found if part for one in part["content"]]
        else:
            answer = app.whole("/v1/chat/completions", **CHAT, **asked)
            content = (answer["choices"][0]["logprobs"] or {"content": []})["content"]
        assert [one["token"] for one in content] == (["a", "b", "c", "<0>"] if asked["logprobs"] else [])
        assert {len(one["top_logprobs"]) for one in content} <= {asked.get("top_logprobs") or 0}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("echo", [False, True])
def test_b10_completions_with_zero_logprobs(stream: bool, echo: bool) -> None:
    body = {"prompt": "Hi", "logprobs": 0, "echo": echo, "max_tokens": 3}
    with EngineApp.serving(forced([97, 98, 99, EOS])) as app:
        answers = (app.streamed if stream else lambda *a, **b: [app.whole(*a, **b)])("/v1/completions", **body)
    parts = [choice["logprobs"] for answer in answers for choice in answer["choices"]]
    top = [one for part in parts if part for one in part["top_logprobs"]]
    names = ["H", "i", "a", "b", "c"] if echo else ["a", "b", "c"]
    # the token itself is always there, but for a prompt's first one, which nothing predicts
    assert [list(one) if one else None for one in top] == [[name] if name != "H" else None for name in names]


def test_b10_more_alternatives_than_there_are_tokens() -> None:
    model = tiny_model("llama", vocab_size=16)
    runner = LocalRunner(model, model_id="small", num_slots=64)
    engine = Engine(runner, Speculator(policy="goose", harvest_k=10), FakeTokenizer(), EngineConfig(policy="goose"))
    sampling = SamplingParams(
        temperature=0.9, top_k=40, seed=2, max_tokens=8, logprobs=20, prompt_logprobs=20, ignore_eos=True
    )
    request = GenerationRequest(request_id="r", prompt_token_ids=(1, 2, 3, 1, 2), sampling=sampling)
    reply = run(engine, request)["r"]
    assert {len(one.top) for one in reply.logprobs or ()} == {16}
    assert {len(one.top) for one in reply.prompt_logprobs or ()} == {16}


ASKED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.9, "top_p": 0.9, "seed": 4},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.5},
}


@pytest.fixture(scope="module")
def runner() -> LocalRunner:
    return LocalRunner(tiny_model("llama"), model_id="llama", num_slots=512)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("asked", ASKED)
def test_b11_logprobs_are_those_of_the_model_at_their_token(runner: LocalRunner, policy: str, asked: str) -> None:
    # llama.cpp 27972, vllm 17876: all 0.0, or shifted by one
    engine = Engine(
        runner,
        Speculator(policy=policy, budget=24, harvest_k=8),
        FakeTokenizer(),
        # Prompts in parts, drafts beside them.
        EngineConfig(policy=policy, budget=24, max_batch_rows=32),
    )
    sampling = SamplingParams(max_tokens=24, logprobs=5, **ASKED[asked])
    requests = [
        GenerationRequest(request_id=str(i), prompt_token_ids=PERIODIC * (i + 1), sampling=sampling) for i in range(3)
    ]
    replies = run(engine, *requests)
    for request in requests:
        reply = replies[request.request_id]
        values = _of_transformers(request, reply)
        assert reply.logprobs is not None
        assert [one.token_id for one in reply.logprobs] == reply.token_ids
        for one, expected in zip(reply.logprobs, values, strict=True):
            assert one.logprob == pytest.approx(float(expected[one.token_id]), abs=1e-3)
            best = expected.topk(5)
            assert [value for _, value in one.top] == pytest.approx(best.values.tolist(), abs=1e-3)
        # Or else a shift would not show.
        assert all(a.logprob != b.logprob for a, b in itertools.pairwise(reply.logprobs[:3]))


def _of_transformers(request: GenerationRequest, reply: Reply) -> torch.Tensor:
    """[n, vocab]: log-probabilities at each place of the reply."""
    ids = torch.tensor([[*request.prompt_token_ids, *reply.token_ids]])
    with torch.inference_mode():
        logits: torch.Tensor = tiny_model("llama")(input_ids=ids).logits[0].float()
    assert logits.shape[1] == VOCAB_SIZE
    return logits.log_softmax(-1)[len(request.prompt_token_ids) - 1 : -1]
