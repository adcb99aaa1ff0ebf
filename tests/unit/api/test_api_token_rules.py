"""Allowed tokens, bad words, scored prompts and prompts alone, over HTTP and a real engine."""

from typing import Any

import pytest
from engine_app import MODEL, EngineApp
from fakes import FakeTokenizer
from scripted_engine import forced

from goose_ray.api.bad_words import spellings

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
ABC = [97, 98, 99, 97, 98, 99, 97, 98, 99]


@pytest.fixture(scope="module")
def app() -> Any:
    with EngineApp.serving(forced(ABC, length=5)) as app:
        yield app


class FramingTokenizer(FakeTokenizer):
    """Puts special tokens around every text."""

    def encode(self, text: str, *, max_tokens: int | None = None) -> list[int]:
        return [1, *text.encode(), 2]


def test_a_word_is_spelt_at_the_beginning_and_behind_a_space() -> None:
    assert spellings(["ab", " c", "ab"], FakeTokenizer()) == ((97, 98), (32, 97, 98), (32, 99))
    assert spellings(["ab", "\x01"], FramingTokenizer()) == ((97, 98), (32, 97, 98), (1,), (32, 1))
    assert spellings([], FramingTokenizer()) == spellings([""], FramingTokenizer())[1:] == ()


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_no_bad_word_and_none_but_allowed_tokens(app: EngineApp, path: str) -> None:
    prompt = {"prompt": "Hi"} if path == "/v1/completions" else CHAT
    body = {**prompt, "temperature": 0, "max_tokens": 9, "return_token_ids": True}

    def ids(**fields: Any) -> list[int]:
        found: list[int] = app.whole(path, **body, **fields)["choices"][0]["token_ids"]
        return found

    assert ids() == ABC
    assert set(ids(allowed_token_ids=[97, 99, 120])) == {97, 99, 120}
    without = ids(bad_words=["bc", "x"])
    assert "bc" not in bytes(without).decode(errors="replace")
    assert without[:2] == ABC[:2] != without[2:4]
    assert ids(bad_words=["cd"]) == ABC
    # as vLLM: neutral
    assert ids(bad_words=[], allowed_token_ids=None) == ABC


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids[0]"),
        ({"allowed_token_ids": [256]}, "allowed_token_ids"),
        ({"allowed_token_ids": [2**80]}, "allowed_token_ids"),
        ({"allowed_token_ids": [97], "bad_words": ["a"]}, "allowed_token_ids"),
        ({"bad_words": [""]}, "bad_words[0]"),
        ({"bad_words": "word"}, "bad_words"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_a_wrong_value_is_named(app: EngineApp, fields: dict[str, Any], param: str) -> None:
    body = {"model": MODEL, "prompt": "Hi", **fields}
    response = app.run(lambda http: http.post("/v1/completions", json=body))
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_prompt_logprobs_by_token_id(app: EngineApp) -> None:
    answer = app.whole("/v1/completions", prompt="abb", temperature=0, max_tokens=2, prompt_logprobs=2)
    (choice,) = answer["choices"]
    first, second, third = choice["prompt_logprobs"]
    assert first is None
    # Whatever stands before it, the model says "a" first in its script.
    assert next(iter(second)) == next(iter(third)) == "98"
    for place in (second, third):
        assert place["98"]["decoded_token"] == "b"
        assert place["97"] == {"logprob": pytest.approx(0.0, abs=1e-3), "rank": 1, "decoded_token": "a"}
        assert place["98"]["logprob"] < -40
        assert len(place) == (3 if place["98"]["rank"] is None else 2)
    # They are no part of the answer's own.
    assert choice["logprobs"] is None
    chat = app.whole("/v1/chat/completions", **CHAT, max_tokens=1, prompt_logprobs=0, return_token_ids=True)
    assert [len(place or ()) for place in chat["prompt_logprobs"]] == [0] + [1] * (len(chat["prompt_token_ids"]) - 1)


def test_echo_and_prompt_logprobs_each_have_their_count(app: EngineApp) -> None:
    body = {"prompt": "abc", "temperature": 0, "max_tokens": 1, "echo": True}
    (both,) = app.whole("/v1/completions", **body, logprobs=1, prompt_logprobs=3)["choices"]
    (echoed,) = app.whole("/v1/completions", **body, logprobs=1)["choices"]
    assert both["logprobs"] == echoed["logprobs"]
    assert {len(place) for place in both["prompt_logprobs"][1:]} <= {3, 4}
    assert "prompt_logprobs" not in echoed


@pytest.mark.parametrize("logprobs", [None, 0, 2])
def test_the_prompt_alone(app: EngineApp, logprobs: int | None) -> None:
    body = {"prompt": "abc", "echo": True, "max_tokens": 0, "logprobs": logprobs, "return_goose_stats": True}
    answer = app.whole("/v1/completions", **body)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("abc", "length")
    assert (answer["usage"]["completion_tokens"], answer["goose"]["committed"]) == (0, 0)
    if logprobs is not None:
        assert choice["logprobs"]["tokens"] == ["a", "b", "c"]
    text = "".join(event["choices"][0]["text"] for event in app.streamed("/v1/completions", **body))
    assert text == "abc"
