"""What the wire models accept, what they make of it, and which field they name when they refuse."""

from typing import Any

import pytest
from wire_requests import HELLO, chat, completion, refusal_of_chat, refusal_of_completion

from goose_ray.api.calls import ChatPrompt
from goose_ray.api.chat import ChatCompletionRequest
from goose_ray.api.completions import CompletionRequest
from goose_ray.api.validation import parse_request
from goose_ray.errors import InvalidRequestError


class TestChat:
    def test_defaults_leave_the_length_to_the_context(self) -> None:
        call = chat().to_call("r")
        assert call.clip_max_tokens
        assert call.sampling.max_tokens > 10**6
        assert call.sampling.temperature == 1.0
        assert call.prompt == ChatPrompt(({"role": "user", "content": "Hello"},))
        assert call.prompt_param == "messages"

    def test_options_reach_the_call(self) -> None:
        call = chat(
            temperature=0,
            top_p=0.5,
            top_k=7,
            seed=-3,
            stop="END",
            stop_token_ids=[5],
            ignore_eos=True,
            max_completion_tokens=9,
            cache_salt="tenant",
            priority=-2,
            goose={"policy": "chain"},
            return_token_ids=True,
        ).to_call("r")
        assert not call.clip_max_tokens
        sampling = call.sampling
        assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (9, 0.0, 0.5, 7)
        assert (sampling.seed, sampling.stop, sampling.stop_token_ids, sampling.ignore_eos) == (
            -3,
            ("END",),
            (5,),
            True,
        )
        assert (call.policy, call.cache_salt, call.return_prompt_token_ids) == ("chain", "tenant", True)
        assert call.priority == -2

    def test_what_changes_logits_reaches_the_call(self) -> None:
        sampling = (
            chat(
                min_p=0.25,
                repetition_penalty=1.5,
                presence_penalty=0.5,
                frequency_penalty=-0.5,
                logit_bias={"7": 3, "0": -100.0},
                min_tokens=4,
                include_stop_str_in_output=True,
            )
            .to_call("r")
            .sampling
        )
        assert (sampling.min_p, sampling.repetition_penalty) == (0.25, 1.5)
        assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)
        assert sampling.logit_bias == ((7, 3.0), (0, -100.0))
        assert (sampling.min_tokens, sampling.include_stop_str_in_output) == (4, True)

    def test_null_means_absent(self) -> None:
        nulls = dict.fromkeys(ChatCompletionRequest.model_fields.keys() - {"model", "messages"})
        assert chat(**{**nulls, "seed": 1}).to_call("r") == chat(seed=1).to_call("r")
        assert not chat(stream=True, stream_options={"include_usage": None}).include_usage

    @pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
    def test_the_call_knows_which_field_limits_it(self, name: str) -> None:
        call = chat(**{name: 9}).to_call("r")
        assert (call.sampling.max_tokens, call.max_tokens_param) == (9, name)

    def test_without_a_seed_each_request_gets_its_own(self) -> None:
        request = chat()
        assert request.to_call("a").sampling.seed != request.to_call("b").sampling.seed

    def test_text_parts_are_joined_and_developer_is_system(self) -> None:
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        call = chat(messages=[{"role": "developer", "content": parts}]).to_call("r")
        assert call.prompt == ChatPrompt(({"role": "system", "content": "ab"},))

    def test_harmless_and_neutral_fields_pass(self) -> None:
        chat(
            user="u",
            metadata={"a": "b"},
            store=True,
            service_tier="auto",
            prompt_cache_key="k",
            safety_identifier="s",
            parallel_tool_calls=True,
            prediction={"type": "content", "content": "x"},
            n=1,
            presence_penalty=0,
            frequency_penalty=0.0,
            repetition_penalty=1.0,
            logit_bias={},
            logprobs=False,
            tools=[],
            tool_choice="none",
            response_format={"type": "text"},
            modalities=["text"],
        )

    def test_a_reply_of_ours_can_be_sent_back(self) -> None:
        echoed = {"role": "assistant", "content": "Hi", "refusal": None, "tool_calls": None, "function_call": None}
        chat(messages=[*HELLO, echoed, *HELLO])

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"messages": []}, "messages"),
            ({"messages": "hello"}, "messages"),
            ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
            ({"messages": [*HELLO, {"role": "user", "content": None}]}, "messages[1].content"),
            ({"messages": [{"role": "user"}]}, "messages[0].content"),
            ({"messages": [{"role": "user", "content": "x", "mood": "good"}]}, "messages[0].mood"),
            ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
            ({"model": None}, "model"),
            ({"max_tokens": 0}, "max_tokens"),
            ({"max_completion_tokens": 0}, "max_completion_tokens"),
            ({"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens"),
            ({"max_tokens": "12"}, "max_tokens"),
            ({"max_tokens": True}, "max_tokens"),
            ({"temperature": -1}, "temperature"),
            ({"temperature": 2.5}, "temperature"),
            ({"temperature": "0.5"}, "temperature"),
            ({"top_p": 0}, "top_p"),
            ({"top_k": -2}, "top_k"),
            ({"min_p": 1.5}, "min_p"),
            ({"repetition_penalty": 0}, "repetition_penalty"),
            ({"repetition_penalty": 1e300}, "repetition_penalty"),
            ({"presence_penalty": 2.5}, "presence_penalty"),
            ({"frequency_penalty": -2.5}, "frequency_penalty"),
            ({"frequency_penalty": "1"}, "frequency_penalty"),
            ({"logit_bias": {"5": 101}}, "logit_bias"),
            ({"logit_bias": {"5": "1"}}, "logit_bias.5"),
            ({"logit_bias": {"hello": 1}}, "logit_bias"),
            ({"logit_bias": {"-5": 1}}, "logit_bias"),
            ({"logit_bias": {"05": 1}}, "logit_bias"),
            ({"logit_bias": {str(2**63): 1}}, "logit_bias"),
            ({"logit_bias": [5]}, "logit_bias"),
            ({"min_tokens": -1}, "min_tokens"),
            ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
            ({"include_stop_str_in_output": 1}, "include_stop_str_in_output"),
            ({"seed": 2**64}, "seed"),
            ({"seed": 1.5}, "seed"),
            ({"stop": 5}, "stop"),
            ({"stop": [""]}, "stop"),
            ({"stop": ["x", 1]}, "stop"),
            ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
            ({"stream": "yes"}, "stream"),
            ({"stream_options": {"include_usages": True}}, "stream_options.include_usages"),
            ({"stream_options": {"include_usage": True}}, "stream_options"),
            ({"goose": {"speed": 9}}, "goose.speed"),
            ({"cache_salt": ""}, "cache_salt"),
            ({"priority": "high"}, "priority"),
            ({"temprature": 1}, "temprature"),
        ],
    )
    def test_a_wrong_field_is_named(self, fields: dict[str, Any], param: str) -> None:
        error = refusal_of_chat(**fields)
        assert error.param == param
        assert error.status == 400
        assert param in str(error)

    @pytest.mark.parametrize(
        "fields",
        [
            {"skip_special_tokens": False},
            {"chat_template": "{{ messages }}"},
            {"continue_final_message": True},
            {"logprob_token_ids": [1]},
            {"vllm_xargs": {"a": 1}},
            {"use_beam_search": True},
            {"modalities": ["text", "audio"]},
            {"reasoning_effort": "low"},
        ],
    )
    def test_what_would_change_the_answer_and_is_not_there_is_refused_by_name(self, fields: dict[str, Any]) -> None:
        error = refusal_of_chat(**fields)
        assert error.param == next(iter(fields))
        assert "not supported yet" in str(error)

    def test_an_unknown_field_is_called_unrecognized(self) -> None:
        assert str(refusal_of_chat(temprature=1)) == "Unrecognized request argument supplied: temprature"
        assert str(refusal_of_chat(**{"": 1})) == 'Unrecognized request argument supplied: ""'

    def test_a_missing_field_is_called_missing(self) -> None:
        with pytest.raises(InvalidRequestError, match="Missing required parameter: 'messages'") as refused:
            parse_request(ChatCompletionRequest, "application/json", b'{"model": "m"}')
        assert refused.value.param == "messages"


class TestCompletion:
    def test_sixteen_tokens_unless_said_otherwise(self) -> None:
        (call,) = completion().to_calls("r")
        assert (call.sampling.max_tokens, call.clip_max_tokens, call.prompt) == (16, True, "Hello")
        assert call.prompt_param == "prompt"

    @pytest.mark.parametrize(
        ("prompt", "prompts"),
        [
            ("a", ["a"]),
            (["a", "b"], ["a", "b"]),
            ([1, 2], [(1, 2)]),
            ([[1, 2], [3]], [(1, 2), (3,)]),
            (["a", [3]], ["a", (3,)]),
        ],
    )
    def test_prompts_become_calls_in_order(self, prompt: Any, prompts: list[Any]) -> None:
        calls = completion(prompt=prompt, seed=1).to_calls("r")
        assert [call.prompt for call in calls] == prompts
        assert len({call.request_id for call in calls}) == len(prompts)

    @pytest.mark.parametrize(("n", "seeds"), [(1, [7, 7]), (2, [7, 8, 7, 8])])
    def test_a_seed_counts_the_choices_of_each_prompt(self, n: int, seeds: list[int]) -> None:
        calls = completion(prompt=["a", "a"], n=n, seed=7).to_calls("r")
        assert [call.sampling.seed for call in calls] == seeds

    @pytest.mark.parametrize("n", [1, 3])
    def test_without_a_seed_equal_prompts_are_drawn_apart(self, n: int) -> None:
        calls = completion(prompt=["a"] * 4, n=n).to_calls("r")
        assert len({call.sampling.seed for call in calls}) == 4 * n

    @pytest.mark.parametrize(
        "fields",
        [
            {"stop": "END"},
            {"stop": ["a", "b"], "max_tokens": 3},
            {"stop_token_ids": [5], "ignore_eos": True},
            {"temperature": 0.5, "top_p": 0.5, "top_k": 7, "min_p": 0.1},
            {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": -0.5},
            {"logit_bias": {"5": 1, "0": -100.0}, "min_tokens": 2, "include_stop_str_in_output": True},
        ],
    )
    def test_shared_fields_mean_what_they_mean_in_a_chat(self, fields: dict[str, Any]) -> None:
        fields = {"seed": 1, "max_tokens": 2, **fields}
        (call,) = completion(**fields).to_calls("r")
        assert call.sampling == chat(**fields).to_call("r").sampling

    def test_null_means_absent(self) -> None:
        nulls = dict.fromkeys(CompletionRequest.model_fields.keys() - {"model", "prompt"})
        assert completion(**{**nulls, "seed": 1}).to_calls("r") == completion(seed=1).to_calls("r")

    @pytest.mark.parametrize("stop", [5, [1], {}, [""], ["x"] * 17])
    def test_a_wrong_stop_is_named(self, stop: Any) -> None:
        assert refusal_of_completion(stop=stop).param == "stop"

    @pytest.mark.parametrize("prompt", ["", [], None, 5, {"a": 1}, [""], [[]], [1.5], [True], [[1, -2]], ["a"] * 129])
    def test_a_wrong_prompt_is_named(self, prompt: Any) -> None:
        assert refusal_of_completion(prompt=prompt).param == "prompt"

    @pytest.mark.parametrize("fields", [{"suffix": "x"}, {"best_of": 2}])
    def test_what_is_not_there_is_refused_by_name(self, fields: dict[str, Any]) -> None:
        assert refusal_of_completion(**fields).param == next(iter(fields))
