"""Log-probabilities and several choices as clients of the two endpoints see them, whole and streamed."""

import json
from typing import Any, ClassVar

import pytest
from fakes import EOS, FakeTokenizer
from scripted_backend import CHAT, MODEL, STATS, ScriptedBackend, events_of, post

from goose_ray.api.calls import Delta, GenerateCall, PromptInfo, ScoredToken, TokenScores
from goose_ray.api.failover import SentAnswer
from goose_ray.api.scoring import AnswerScores
from goose_ray.engine.logprobs import TokenLogprobs
from goose_ray.engine.sampling_params import SamplingParams

COMPLETION = {"model": MODEL, "prompt": "Hi"}
# "é" in two tokens, then "lo", then the end of the answer, which has a name and no text
TOKENS = (b"\xc3", b"\xa9", b"lo", b"<end>")


def _scores(place: int, *, count: int = 2, offset: int = 0) -> TokenScores:
    others = (ScoredToken(b" other", -0.25), ScoredToken(b"\xff", -3.5))[:count]
    return TokenScores(ScoredToken(TOKENS[place], -0.5 - place), others, offset)


def _backend(*, count: int = 2) -> ScriptedBackend:
    return ScriptedBackend(
        [
            # the first step ends inside a character
            Delta(text="", token_ids=(1,), prompt=PromptInfo(3), scores=(_scores(0, count=count),)),
            Delta(
                text="élo",
                token_ids=(2, 3),
                scores=(_scores(1, count=count), _scores(2, count=count, offset=1)),
            ),
            Delta(
                text="",
                token_ids=(4,),
                scores=(_scores(3, count=count, offset=3),),
                finish_reason="stop",
                stats=STATS,
            ),
        ]
    )


def _entry(content: bytes, logprob: float) -> dict[str, Any]:
    return {"token": content.decode(errors="replace"), "logprob": logprob, "bytes": list(content)}


OTHERS = [_entry(b" other", -0.25), _entry(b"\xff", -3.5)]
CHAT_CONTENT = [{**_entry(token, -0.5 - i), "top_logprobs": OTHERS} for i, token in enumerate(TOKENS)]


class TestChat:
    def test_whole(self) -> None:
        backend = _backend()
        answer = post(backend, "/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2}).json()
        assert answer["choices"][0]["logprobs"] == {"content": CHAT_CONTENT}
        assert backend.calls[0].sampling.logprobs == 2
        # the bytes of the tokens that are text make up the text
        found = bytes(byte for one in CHAT_CONTENT[:3] for byte in one["bytes"])
        assert found.decode() == answer["choices"][0]["message"]["content"]

    def test_streamed_nothing_is_missing(self) -> None:
        """A step without text has log-probabilities all the same."""
        body = {**CHAT, "logprobs": True, "top_logprobs": 2, "stream": True}
        events = events_of(post(_backend(), "/v1/chat/completions", body))
        found = [event["choices"][0]["logprobs"] for event in events]
        assert found[0] is None
        assert [one for part in found[1:] for one in part["content"]] == CHAT_CONTENT

    @pytest.mark.parametrize("top", [{"top_logprobs": 0}, {}, {"top_logprobs": None}])
    @pytest.mark.parametrize("stream", [False, True])
    def test_b10_without_alternatives(self, top: dict[str, Any], stream: bool) -> None:
        # vllm 30059
        backend = _backend(count=0)
        response = post(backend, "/v1/chat/completions", {**CHAT, "logprobs": True, "stream": stream, **top})
        assert response.status_code == 200
        assert backend.calls[0].sampling.logprobs == 0
        if not stream:
            content = response.json()["choices"][0]["logprobs"]["content"]
            assert content == [{**one, "top_logprobs": []} for one in CHAT_CONTENT]

    @pytest.mark.parametrize("asked", [{}, {"logprobs": False}, {"logprobs": None}, {"top_logprobs": 0}])
    def test_unasked_there_are_none(self, asked: dict[str, Any]) -> None:
        backend = ScriptedBackend()
        answer = post(backend, "/v1/chat/completions", {**CHAT, **asked}).json()
        assert answer["choices"][0]["logprobs"] is None
        assert backend.calls[0].sampling.logprobs is None

    def test_what_is_impossible_is_still_json(self) -> None:
        scores = TokenScores(ScoredToken(b"a", float("-inf")), (), 0)
        backend = ScriptedBackend(
            [Delta(text="a", token_ids=(1,), prompt=PromptInfo(1), scores=(scores,), finish_reason="stop", stats=STATS)]
        )
        answer = json.loads(post(backend, "/v1/chat/completions", {**CHAT, "logprobs": True}).text)
        assert answer["choices"][0]["logprobs"]["content"][0]["logprob"] == -9999.0


class TestCompletions:
    NAMES = ("bytes:\\xc3", "bytes:\\xa9", "lo", "<end>")

    def test_whole(self) -> None:
        answer = post(_backend(), "/v1/completions", {**COMPLETION, "logprobs": 2}).json()
        others = {" other": -0.25, "bytes:\\xff": -3.5}
        assert answer["choices"][0]["logprobs"] == {
            "text_offset": [0, 0, 1, 3],
            "token_logprobs": [-0.5, -1.5, -2.5, -3.5],
            "tokens": list(self.NAMES),
            "top_logprobs": [{**others, name: -0.5 - i} for i, name in enumerate(self.NAMES)],
        }

    def test_streamed_nothing_is_missing(self) -> None:
        events = events_of(post(_backend(), "/v1/completions", {**COMPLETION, "logprobs": 2, "stream": True}))
        found = [event["choices"][0]["logprobs"] for event in events]
        assert [name for part in found for name in part["tokens"]] == list(self.NAMES)
        assert [offset for part in found for offset in part["text_offset"]] == [0, 0, 1, 3]

    def test_zero_alternatives_leave_the_token_itself(self) -> None:
        backend = _backend(count=0)
        logprobs = post(backend, "/v1/completions", {**COMPLETION, "logprobs": 0}).json()["choices"][0]["logprobs"]
        assert backend.calls[0].sampling.logprobs == 0
        assert logprobs["top_logprobs"] == [{name: -0.5 - i} for i, name in enumerate(self.NAMES)]


class TestEcho:
    BACKEND = ScriptedBackend(
        [
            Delta(
                text="lo",
                token_ids=(5,),
                prompt=PromptInfo(
                    2,
                    text="Hel",
                    scores=(
                        TokenScores(ScoredToken(b"H", None), (), 0),
                        TokenScores(ScoredToken(b"el", -2.0), (ScoredToken(b"i", -1.0),), 1),
                    ),
                ),
                scores=(TokenScores(ScoredToken(b"lo", -0.5), (ScoredToken(b"lo", -0.5),), 3),),
                finish_reason="length",
                stats=STATS,
            )
        ]
    )
    LOGPROBS: ClassVar = {
        "text_offset": [0, 1, 3],
        "token_logprobs": [None, -2.0, -0.5],
        "tokens": ["H", "el", "lo"],
        "top_logprobs": [None, {"i": -1.0, "el": -2.0}, {"lo": -0.5}],
    }

    def test_whole(self) -> None:
        answer = post(self.BACKEND, "/v1/completions", {**COMPLETION, "echo": True, "logprobs": 1}).json()
        assert answer["choices"][0]["text"] == "Hello"
        assert answer["choices"][0]["logprobs"] == self.LOGPROBS
        call = self.BACKEND.calls[-1]
        assert (call.echo, call.sampling.prompt_logprobs) == (True, 1)

    def test_streamed(self) -> None:
        body = {**COMPLETION, "echo": True, "logprobs": 1, "stream": True}
        choices = [event["choices"][0] for event in events_of(post(self.BACKEND, "/v1/completions", body))]
        assert [choice["text"] for choice in choices] == ["Hel", "lo"]
        for name, values in self.LOGPROBS.items():
            assert [value for choice in choices for value in choice["logprobs"][name]] == values

    @pytest.mark.parametrize("fields", [{"echo": True}, {"echo": False, "logprobs": 1}, {"logprobs": 1}])
    def test_prompts_are_scored_only_if_both_are_asked_for(self, fields: dict[str, Any]) -> None:
        backend = ScriptedBackend()
        post(backend, "/v1/completions", {**COMPLETION, **fields})
        assert backend.calls[0].sampling.prompt_logprobs is None
        assert backend.calls[0].echo == fields.get("echo", False)


class TestChoices:
    def test_each_has_a_seed_an_index_and_an_id_of_its_own(self) -> None:
        backend = ScriptedBackend()
        answer = post(backend, "/v1/chat/completions", {**CHAT, "n": 3, "seed": 7}).json()
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
        assert sorted(call.sampling.seed for call in backend.calls) == [7, 8, 9]
        assert len({call.request_id for call in backend.calls}) == 3
        assert all(call.prompt == backend.calls[0].prompt for call in backend.calls)

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_prompt_counts_once(self, stream: bool) -> None:
        body = {**COMPLETION, "prompt": ["a", "b"], "n": 3, "stream": stream}
        if stream:
            body["stream_options"] = {"include_usage": True}
        response = post(ScriptedBackend(), "/v1/completions", body)
        usage = (events_of(response)[-1] if stream else response.json())["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (6, 30, 36)
        assert usage["prompt_tokens_details"]["cached_tokens"] == 4

    def test_choices_of_a_prompt_follow_each_other(self) -> None:
        backend = ScriptedBackend()
        answer = post(backend, "/v1/completions", {**COMPLETION, "prompt": ["a", "b"], "n": 2, "seed": 1}).json()
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        by_id = sorted(backend.calls, key=lambda call: call.request_id)
        assert [(call.prompt, call.sampling.seed) for call in by_id] == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]

    def test_streamed_each_opens_and_ends(self) -> None:
        events = events_of(post(ScriptedBackend(), "/v1/chat/completions", {**CHAT, "n": 2, "stream": True}))
        for index in (0, 1):
            chunks = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
            assert chunks[0]["delta"] == {"role": "assistant", "content": ""}
            assert "".join(chunk["delta"].get("content", "") for chunk in chunks) == "Héllo"
            assert chunks[-1]["finish_reason"] == "stop"

    @pytest.mark.parametrize(
        ("path", "fields", "param", "right"),
        [
            ("/v1/chat/completions", {"n": 0}, "n", "greater than or equal to 1"),
            ("/v1/chat/completions", {"n": 129}, "n", "less than or equal to 128"),
            ("/v1/completions", {"prompt": ["a"] * 50, "n": 3}, "n", "128"),
            ("/v1/chat/completions", {"best_of": 2}, "best_of", "n choices"),
            ("/v1/completions", {"best_of": 3, "n": 2}, "best_of", "n choices"),
            ("/v1/completions", {"best_of": 0}, "best_of", "n choices"),
            ("/v1/completions", {"logprobs": -1}, "logprobs", "greater than or equal to 0"),
            ("/v1/completions", {"logprobs": 21}, "logprobs", "less than or equal to 20"),
            ("/v1/completions", {"logprobs": True}, "logprobs", "integer"),
            ("/v1/chat/completions", {"logprobs": 2}, "logprobs", "boolean"),
            ("/v1/chat/completions", {"top_logprobs": 2}, "top_logprobs", "logprobs to be true"),
            ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
            ("/v1/chat/completions", {"logprobs": True, "top_logprobs": -1}, "top_logprobs", "0"),
        ],
    )
    def test_a_wrong_value_is_named_with_what_would_be_right(
        self, path: str, fields: dict[str, Any], param: str, right: str
    ) -> None:
        backend = ScriptedBackend()
        response = post(backend, path, {**(CHAT if "chat" in path else COMPLETION), **fields})
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["param"] == param
        assert right in error["message"]
        assert backend.calls == []

    def test_best_of_n_is_n(self) -> None:
        answer = post(ScriptedBackend(), "/v1/completions", {**COMPLETION, "n": 2, "best_of": 2}).json()
        assert len(answer["choices"]) == 2


def test_offsets_count_characters_of_the_text_over_steps() -> None:
    scores = AnswerScores(FakeTokenizer(["ab"], specials=(EOS,)))
    steps = [[256, 0xC3], [0xA9, 120, EOS], [121]]
    found = [one for step in steps for one in scores.add([TokenLogprobs(t, -1.0, ((t, -1.0),)) for t in step])]
    assert [one.token.content for one in found] == [b"ab", b"\xc3", b"\xa9", b"x", b"<0>", b"y"]
    assert [one.offset for one in found] == [0, 2, 2, 3, 4, 4]
    assert [one.alternatives for one in found] == [(one.token,) for one in found]


def test_a_prompt_is_scored_from_its_first_token_on_which_nothing_predicts() -> None:
    scores = AnswerScores(FakeTokenizer(["ab"]))
    first, second = scores.add_prompt(256, [TokenLogprobs(120, -1.0, ((121, -0.5),))])
    assert (first.token, first.alternatives, first.offset) == (ScoredToken(b"ab", None), (), 0)
    assert (second.token, second.alternatives, second.offset) == (
        ScoredToken(b"x", -1.0),
        (ScoredToken(b"y", -0.5),),
        2,
    )


def test_what_another_replica_says_again_is_left_out_of_the_scores_too() -> None:
    sent = SentAnswer()
    parts = [_scores(place) for place in range(3)]
    sent.unsent(Delta(text="ab", token_ids=(1, 2), prompt=PromptInfo(1), scores=tuple(parts[:2])))
    call = GenerateCall(
        request_id="r", prompt="a", sampling=SamplingParams(max_tokens=9, logprobs=1), clip_max_tokens=False
    )
    # Run again from its start: what was passed on has no scores elsewhere.
    assert sent.start_run(call) == call
    fresh = sent.unsent(Delta(text="abc", token_ids=(1, 2, 3), prompt=PromptInfo(1), scores=tuple(parts)))
    assert fresh is not None
    assert (fresh.token_ids, fresh.scores) == ((3,), (parts[2],))
