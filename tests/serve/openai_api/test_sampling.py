"""Sampling features of a running server: accepted, felt, and the same under every policy."""

import re
from typing import Any

import openai
import pydantic
import pytest

from serve.helpers import MODEL, Server

POLICIES = ("autoregressive", "chain", "goose", "anisotropic")
QUESTION = "What is the capital of France?"
MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]


def test_penalties_and_limits_under_every_policy(server: Server) -> None:
    options = {
        "max_tokens": 16,
        "temperature": 0.7,
        "seed": 3,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "logit_bias": {"260": -3},
        "min_tokens": 10,
        "logprobs": True,
        "top_logprobs": 3,
        "return_token_ids": True,
    }
    answers = [server.chat("Describe a duck.", goose={"policy": policy}, **options) for policy in POLICIES]
    choices = [answer["choices"][0] for answer in answers]
    assert len({tuple(choice["token_ids"]) for choice in choices}) == 1
    contents = [choice["logprobs"]["content"] for choice in choices]
    for content in contents:
        assert [one["token"] for one in content] == [one["token"] for one in contents[0]]
        assert [one["logprob"] for one in content] == pytest.approx([one["logprob"] for one in contents[0]], abs=1e-3)
        assert len(content) == answers[0]["usage"]["completion_tokens"] >= 10
        assert all(len(one["top_logprobs"]) == 3 for one in content)


def test_a_bias_decides(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL,
        prompt="A B C",
        max_tokens=4,
        temperature=1,
        logit_bias={"28": 100},
        extra_body={"ignore_eos": True},
    )
    assert len(set(answer.choices[0].text)) == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_chat_logprobs_streamed_and_whole(client: openai.OpenAI, policy: str) -> None:
    request: dict[str, Any] = {
        "model": MODEL,
        "messages": MESSAGES,
        "temperature": 0,
        "max_tokens": 12,
        "logprobs": True,
        "top_logprobs": 2,
        "extra_body": {"goose": {"policy": policy}},
    }
    whole = client.chat.completions.create(**request).choices[0]
    assert whole.logprobs is not None
    assert whole.logprobs.content is not None
    tokens = whole.logprobs.content
    assert all(one.top_logprobs[0].token == one.token for one in tokens)
    text = b"".join(bytes(one.bytes or ()) for one in tokens if one.token != "<|im_end|>").decode()
    assert text == whole.message.content
    streamed = [
        one
        for chunk in client.chat.completions.create(**request, stream=True)
        for choice in chunk.choices
        if choice.logprobs is not None
        for one in choice.logprobs.content or ()
    ]
    assert [one.token for one in streamed] == [one.token for one in tokens]
    assert [one.logprob for one in streamed] == pytest.approx([one.logprob for one in tokens], abs=1e-3)


def test_b10_no_alternatives(server: Server) -> None:
    answer = server.chat(QUESTION, max_tokens=3, logprobs=True, top_logprobs=0)
    assert [one["top_logprobs"] for one in answer["choices"][0]["logprobs"]["content"]] == [[], [], []]


@pytest.mark.parametrize("policy", POLICIES)
def test_b6_a_stop_string_cuts_logprobs_too(server: Server, policy: str) -> None:
    options = {"max_tokens": 24, "logprobs": True, "return_token_ids": True, "goose": {"policy": policy}}
    (choice,) = server.chat(QUESTION, stop=[" is"], **options)["choices"]
    tokens = choice["logprobs"]["content"]
    assert "".join(one["token"] for one in tokens) == choice["message"]["content"]
    assert len(tokens) == len(choice["token_ids"])
    (included,) = server.chat(QUESTION, stop=[" is"], include_stop_str_in_output=True, **options)["choices"]
    assert included["message"]["content"] == choice["message"]["content"] + " is"
    assert included["finish_reason"] == "stop"


def test_completion_logprobs(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="One, two, three,", temperature=0, max_tokens=6, logprobs=2)
    choice = answer.choices[0]
    assert choice.logprobs is not None
    assert "".join(choice.logprobs.tokens or ()) == choice.text
    offsets = choice.logprobs.text_offset or []
    for offset, token in zip(offsets, choice.logprobs.tokens or (), strict=True):
        assert choice.text[offset:].startswith(token)
    assert all(len(top) in (2, 3) for top in choice.logprobs.top_logprobs or ())


@pytest.mark.parametrize("stream", [False, True])
def test_echo_scores_the_prompt(client: openai.OpenAI, stream: bool) -> None:
    prompt = "One, two, three,"
    request: dict[str, Any] = {"model": MODEL, "temperature": 0, "logprobs": 1, "prompt": prompt}
    plain = client.completions.create(**request, max_tokens=4).choices[0]
    for _ in range(2):
        echoed: dict[str, Any] = {**request, "max_tokens": 4, "echo": True}
        if stream:
            choices = [chunk.choices[0] for chunk in client.completions.create(**echoed, stream=True)]
        else:
            choices = client.completions.create(**echoed).choices
        assert "".join(choice.text for choice in choices) == prompt + plain.text
        tokens = [token for choice in choices if choice.logprobs for token in choice.logprobs.tokens or ()]
        values = [value for choice in choices if choice.logprobs for value in choice.logprobs.token_logprobs or ()]
        assert "".join(tokens) == prompt + plain.text
        assert plain.logprobs is not None
        assert values[0] is None
        assert values[-4:] == pytest.approx(plain.logprobs.token_logprobs, abs=1e-3)
        assert all(value < 0 for value in values[1:])


def test_choices_have_seeds_of_their_own(client: openai.OpenAI) -> None:
    def texts(n: int, seed: int) -> list[str | None]:
        answer = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, temperature=1.2, max_tokens=12, n=n, seed=seed
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == alone.usage.prompt_tokens  # type: ignore[union-attr]
        return [choice.message.content for choice in answer.choices]

    alone = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=1)
    together = texts(3, 40)
    assert len(set(together)) == 3
    assert together == [texts(1, 40 + choice)[0] for choice in range(3)]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"100000000": 1}}, "logit_bias"),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"best_of": 2}, "best_of"),
    ],
)
def test_a_wrong_value_is_named(server: Server, fields: dict[str, Any], param: str) -> None:
    body = {"model": MODEL, "messages": MESSAGES, **fields}
    response = server.http.post("/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


class Person(pydantic.BaseModel, extra="forbid"):
    first_name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=120)
    likes_music: bool


PERSON_MESSAGES: list[Any] = [{"role": "user", "content": "Invent a person. Answer in JSON."}]


@pytest.mark.parametrize("policy", ["autoregressive", "anisotropic"])
def test_the_clients_own_parser_reads_a_structured_answer(client: openai.OpenAI, policy: str) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": PERSON_MESSAGES,
        "temperature": 0,
        "max_tokens": 200,
        "extra_body": {"goose": {"policy": policy}},
    }
    parsed = client.chat.completions.parse(**asked, response_format=Person).choices[0].message.parsed
    assert isinstance(parsed, Person)
    named = {"name": "person", "schema": Person.model_json_schema(), "strict": True}
    form: Any = {"type": "json_schema", "json_schema": named}
    whole = client.chat.completions.create(**asked, response_format=form).choices[0].message.content
    assert Person.model_validate_json(whole or "").age in range(121)
    chunks = client.chat.completions.create(**asked, response_format=form, stream=True)
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == whole


def test_other_shapes(client: openai.OpenAI, server: Server) -> None:
    request: dict[str, Any] = {"model": MODEL, "prompt": "The answer is", "temperature": 0, "max_tokens": 20}
    for shape, pattern in (
        ({"choice": ["perhaps", "perhaps not"]}, "perhaps( not)?"),
        ({"regex": "[a-z]{3}-[0-9]{2}"}, "[a-z]{3}-[0-9]{2}"),
        ({"grammar": 'start: "<" /[a-z]{1,5}/ ">"'}, "<[a-z]{1,5}>"),
    ):
        answer = client.completions.create(**request, extra_body={"structured_outputs": shape}).choices[0]
        assert re.fullmatch(pattern, answer.text)
        assert answer.finish_reason == "stop"
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(**request, extra_body={"structured_outputs": {"regex": "("}})
    assert refused.value.param == "structured_outputs.regex"
    accepted = [line for line in server.http.get("/metrics").text.splitlines() if 'source="grammar"' in line]
    assert any("source_accepted_tokens" in line and not line.endswith(" 0.0") for line in accepted)


def test_a_shape_that_ends_the_process_that_compiles_it_ends_nobody_else_s_answer(
    client: openai.OpenAI, server: Server
) -> None:
    """The grammar library overruns the stack with references one behind the other."""
    links: dict[str, Any] = {str(n): {"items": {"$ref": f"#/{n + 1}"}} for n in range(3300)}
    asked: dict[str, Any] = {"model": MODEL, "prompt": "The answer is", "temperature": 0, "max_tokens": 20}
    before = client.completions.create(**asked).choices[0].text
    with client.completions.create(**asked, stream=True) as stream:
        first = next(iter(stream)).choices[0].text
        shape = {"json": {**links, "3300": True, "$ref": "#/0"}}
        with pytest.raises(openai.BadRequestError, match="takes more than 3 s or 256 MiB to compile"):
            client.completions.create(**asked, extra_body={"structured_outputs": shape})
        assert first + "".join(choice.text for chunk in stream for choice in chunk.choices) == before
    assert re.fullmatch(
        "[0-9]{4}",
        client.completions.create(**asked, extra_body={"structured_outputs": {"regex": "[0-9]{4}"}}).choices[0].text,
    )
