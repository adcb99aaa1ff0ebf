"""What is counted is what was delivered: B7 and B8."""

from typing import Any

import pytest
from engine_app import EngineApp
from engine_helpers import ScriptedSpeculator, make_request, run
from fakes import EOS, scripted_model
from scripted_engine import forced, modelled

from goose_ray.engine.request import SourceStats

LETTERS = list(range(97, 117))
PATHS = ("/v1/completions", "/v1/chat/completions")
PROMPTS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("n", [1, 2])
def test_b07_a_limit_in_the_middle_of_an_accepted_block(path: str, n: int) -> None:
    # ik_llama.cpp 2358
    with EngineApp.serving(forced(LETTERS)) as app:
        for max_tokens in range(1, 20):
            body = {**PROMPTS[path], "max_tokens": max_tokens, "n": n, "return_token_ids": True, "temperature": 0}
            whole = app.whole(path, **body)
            assert [choice["token_ids"] for choice in whole["choices"]] == [LETTERS[:max_tokens]] * n
            assert {choice["finish_reason"] for choice in whole["choices"]} == {"length"}
            assert whole["usage"]["completion_tokens"] == n * max_tokens
            *events, last = app.streamed(path, **body, stream_options={"include_usage": True})
            streamed = [
                token for event in events for choice in event["choices"] for token in choice.get("token_ids", ())
            ]
            assert len(streamed) == last["usage"]["completion_tokens"] == n * max_tokens
            assert last["usage"] == whole["usage"] | {"prompt_tokens_details": last["usage"]["prompt_tokens_details"]}


@pytest.mark.parametrize("path", PATHS)
def test_b07_a_trimmed_stop_string_is_not_counted_but_eos_is(path: str) -> None:
    with EngineApp.serving(forced([*LETTERS[:5], EOS, *LETTERS])) as app:
        body = {**PROMPTS[path], "max_tokens": 20, "return_token_ids": True, "return_goose_stats": True}
        for options, num_tokens in (
            ({}, 6),
            ({"stop": "cde"}, 2),
            ({"stop": "a"}, 0),
            ({"stop": "cde", "include_stop_str_in_output": True}, 5),
            ({"stop": "xyz", "max_tokens": 4}, 4),
        ):
            answer = app.whole(path, **{**body, **options})
            (choice,) = answer["choices"]
            assert len(choice["token_ids"]) == answer["usage"]["completion_tokens"] == num_tokens
            assert answer["goose"]["committed"] == num_tokens


def test_b08_metrics_count_committed_tokens_only() -> None:
    # vllm 56101: [d1, d2, EOS, d4, d5, bonus]
    output = [10, 11, EOS, 13, 14, 15]
    drafts = ScriptedSpeculator(scripted_model(output), length=5, vocab_size=256)
    engine = modelled(scripted_model(output), drafts)
    last = run(engine, make_request(max_tokens=40))["r"].last
    assert last is not None
    assert (last.stats.drafted, last.stats.accepted, last.stats.committed, last.stats.steps) == (5, 3, 3, 1)
    assert last.stats.by_source == {"script": SourceStats(5, 3)}
    stats = engine.stats()
    assert (stats.num_draft_tokens, stats.num_accepted_tokens, stats.generation_tokens) == (5, 3, 3)
    assert stats.accepted_per_position == (1, 1, 1)
    assert engine.trace.last(1)[0].sequences[0].committed == 3
    # What the drafts learn of: the bonus is the token that the model said in the end's place.
    (outcome,) = drafts.outcomes
    assert (outcome.accepted_nodes.tolist(), outcome.committed_ids.tolist()) == ([1, 2, 3], [10, 11, EOS])
    assert outcome.bonus_id == 13


@pytest.mark.parametrize(
    ("options", "delivered", "accepted"),
    [
        # the whole block of 8 and its bonus token
        ({"max_tokens": 9}, 9, 8),
        # the last token is a bonus, never a draft
        ({"max_tokens": 4}, 4, 3),
        ({"max_tokens": 20, "stop_token_ids": [100]}, 4, 4),
        # three tokens before the stop string, in the same step
        ({"max_tokens": 20, "stop": ["de"]}, 3, 3),
        ({"max_tokens": 1}, 1, 0),
    ],
)
def test_b08_metrics_of_a_block_that_is_cut(options: dict[str, Any], delivered: int, accepted: int) -> None:
    with EngineApp.serving(forced(LETTERS)) as app:
        app.whole("/v1/completions", prompt="Hi", **options)
        metrics = app.run(lambda http: http.metrics())

    def total(name: str) -> float:
        return sum(value for key, value in metrics.items() if key.startswith((f"{name}{{", f"{name} ")) or key == name)

    assert total("vllm:generation_tokens_total") == delivered
    assert total("vllm:spec_decode_num_accepted_tokens_total") == accepted
    assert total("vllm:spec_decode_num_accepted_tokens_per_pos_total") == accepted
