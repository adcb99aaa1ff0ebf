"""Answers of models that think, over HTTP and a real engine: whole as streamed, drafted or not, tools and shapes."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from engine_app import EngineApp, Http
from engine_helpers import ScriptedSpeculator
from fakes import scripted_model
from logit_runner import LogitRunner
from tool_templates import HERMES, THINKS, THINKS_AT_ONCE, tokenizer_with

from goose_ray.api.calls import Delta
from goose_ray.api.chat import ChatCompletionRequest
from goose_ray.api.reasoning.prompting import ReasoningPrompts
from goose_ray.config import EngineConfig
from goose_ray.engine.engine import Engine
from goose_ray.models.tokenizer import HFTokenizer

PATH = "/v1/chat/completions"
MARKS = ("<think>", "</think>")
THOUGHT, ANSWER = "Hm, é 😀? I <tool_call> nobody.", "The answer is 3.\n"
TEXT = f"<think>\n{THOUGHT}\n</think>\n\n{ANSWER}"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "<think>"}], "temperature": 0, "max_tokens": 120}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "clock", "parameters": NOTHING}}
CALL = '<tool_call>\n{"name": "clock", "arguments": {"zone": "UTC"}}\n</tool_call>'


@contextmanager
def saying(
    text: str, template: str = THINKS, *, specials: tuple[str, ...] = MARKS, length: int = 8
) -> Iterator[EngineApp]:
    """A model that writes `text`, `length` tokens of it drafted a step."""
    tokenizer = tokenizer_with(template, specials=specials)
    model = scripted_model([*tokenizer.encode(text), tokenizer.eos_token_ids[0]])
    size = tokenizer.vocab_size
    engine = Engine(
        LogitRunner(model, vocab_size=size, num_slots=512, max_model_len=512, eos_token_ids=tokenizer.eos_token_ids),
        ScriptedSpeculator(model, length=length, vocab_size=size),
        tokenizer,
        EngineConfig(),
    )
    with EngineApp.serving(engine) as app:
        yield app


def tokens_up_to(text: str, end: str, tokenizer: HFTokenizer) -> int:
    """How many tokens of `text` it takes until `end` is there."""
    token_ids = tokenizer.encode(text)
    shown = frozenset(token_ids)
    return next(n for n in range(len(token_ids) + 1) if end in tokenizer.decode(token_ids[:n], shown))


def check(app: EngineApp, **options: Any) -> dict[str, Any]:
    """The whole answer's choice and usage; the stream says the same."""
    body = {**BODY, **options}
    answer = app.whole(PATH, **body)
    (choice,) = answer["choices"]
    message = choice["message"]
    streamed = {"reasoning": "", "reasoning_content": "", "content": ""}
    events = app.streamed(PATH, **body, stream_options={"include_usage": True})
    counted = events.pop()["usage"]
    for name in ("prompt_tokens", "completion_tokens", "completion_tokens_details"):
        assert counted.get(name) == answer["usage"].get(name)
    for event in events:
        delta = event["choices"][0]["delta"]
        assert delta or event["choices"][0]["finish_reason"], "an event that says nothing"
        for name in streamed:
            streamed[name] += delta.get(name, "")
    assert streamed["content"] == (message["content"] or "")
    for name in ("reasoning", "reasoning_content"):
        assert streamed[name] == (message.get(name) or "")
    assert message.get("reasoning") == message.get("reasoning_content")
    return {**choice, "usage": answer["usage"]}


def thought_and_said(choice: dict[str, Any]) -> tuple[str | None, str | None]:
    return choice["message"]["reasoning"], choice["message"]["content"]


@pytest.mark.parametrize("length", [0, 40])
@pytest.mark.parametrize("specials", [(), MARKS])
def test_thinking_is_apart_and_counted(specials: tuple[str, ...], length: int) -> None:
    with saying(TEXT, specials=specials, length=length) as app:
        choice = check(app)
    assert thought_and_said(choice) == (THOUGHT, ANSWER)
    num_thought = tokens_up_to(TEXT, "</think>", tokenizer_with(THINKS, specials=specials))
    assert choice["usage"]["completion_tokens_details"] == {"reasoning_tokens": num_thought}
    assert choice["usage"]["completion_tokens"] > num_thought


def test_cut_inside_it_there_is_no_answer() -> None:
    with saying(TEXT) as app:
        choice = check(app, max_tokens=6)
        assert choice["finish_reason"] == "length"
        assert choice["usage"]["completion_tokens_details"] == {"reasoning_tokens": 6}
        thought, said = thought_and_said(choice)
        assert said is None
        assert thought
        assert THOUGHT.startswith(thought.rstrip("\ufffd"))


def test_begun_by_the_template() -> None:
    with saying(TEXT.removeprefix("<think>"), THINKS_AT_ONCE) as app:
        assert thought_and_said(check(app)) == (THOUGHT, ANSWER)


@pytest.mark.parametrize("template", [THINKS, THINKS_AT_ONCE])
def test_switched_off_by_the_request_everything_is_the_answer(template: str) -> None:
    with saying(ANSWER, template) as app:
        choice = check(app, chat_template_kwargs={"enable_thinking": False})
    assert choice["message"] == {"role": "assistant", "content": ANSWER}
    assert "completion_tokens_details" not in choice["usage"]


def test_an_answer_without_thinking_of_a_model_that_may() -> None:
    with saying(ANSWER) as app:
        choice = check(app)
    assert thought_and_said(choice) == (None, ANSWER)
    assert choice["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_of_a_model_whose_template_knows_of_none_nothing_is_taken() -> None:
    with saying(TEXT, HERMES, specials=()) as app:
        assert check(app)["message"] == {"role": "assistant", "content": TEXT}


@pytest.mark.parametrize(
    ("setting", "template", "reasoning"),
    [("none", THINKS, ""), ("qwen3", HERMES, ""), ("deepseek_r1", HERMES, "a"), ("auto", THINKS, "")],
)
def test_the_configuration_says_how_the_model_thinks(setting: str, template: str, reasoning: str) -> None:
    tokenizer = tokenizer_with(template)
    call = ChatCompletionRequest.model_validate({"model": "tiny", **BODY}).to_call("r")
    place = ReasoningPrompts(tokenizer, setting).place(call, tokenizer.apply_chat_template(BODY["messages"]))
    assert (place is None) == (setting == "none")
    if place is not None:
        delta = Delta(text="a</think>b", token_ids=tuple(tokenizer.encode("a</think>b")), finish_reason="stop")
        assert place.reader(told=True).read(delta).reasoning == reasoning


def test_left_out_if_the_request_says_so() -> None:
    with saying(TEXT) as app:
        choice = check(app, include_reasoning=False)
    assert choice["message"] == {"role": "assistant", "content": ANSWER}
    assert choice["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


@pytest.mark.parametrize("length", [0, 40])
@pytest.mark.parametrize("specials", [(), MARKS])
def test_left_out_its_tokens_have_no_log_probabilities_either(specials: tuple[str, ...], length: int) -> None:
    body = {**BODY, "logprobs": True, "include_reasoning": False}
    with saying(TEXT, specials=specials, length=length) as app:
        whole = app.whole(PATH, **body)["choices"][0]
        events = [event["choices"][0] for event in app.streamed(PATH, **body)]
    streamed = [token for event in events if event.get("logprobs") for token in event["logprobs"]["content"]]
    for tokens in (whole["logprobs"]["content"], streamed):
        assert "".join(token["token"] for token in tokens).strip().startswith(ANSWER)


def test_only_behind_it_calls_are_calls() -> None:
    template = HERMES + "{# </think> #}"
    with saying(f"<think>{CALL}</think>\n{CALL}", template) as app:
        message = app.whole(PATH, **BODY, tools=[TOOL])["choices"][0]["message"]
        events = app.streamed(PATH, **BODY, tools=[TOOL])
    assert message["reasoning"] == CALL
    assert message["content"] is None
    (call,) = message["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"zone": "UTC"}
    parts = [part for event in events for part in event["choices"][0]["delta"].get("tool_calls", ())]
    assert "".join(part["function"]["arguments"] for part in parts) == call["function"]["arguments"]


@pytest.mark.parametrize("template", [THINKS, THINKS_AT_ONCE])
def test_the_answer_alone_has_the_shape(template: str) -> None:
    """A model that would write prose instead must not."""
    text = TEXT if template == THINKS else TEXT.removeprefix("<think>")
    shape = {"structured_outputs": {"regex": "[a-z]{3}-[0-9]{3}"}}
    with saying(text, template) as app:
        thought, said = thought_and_said(check(app, **shape))
        assert thought == THOUGHT
        assert said is not None
        assert (said[:3].islower(), said[3], said[4:].isdecimal(), len(said)) == (True, "-", True, 7)
        message = app.whole(PATH, **BODY, tools=[TOOL], tool_choice="required")["choices"][0]["message"]
        assert message["reasoning"] == THOUGHT
        assert message["tool_calls"][0]["function"] == {"name": "clock", "arguments": "{}"}


def test_earlier_thinking_reaches_the_template() -> None:
    async def shown(http: Http) -> str:
        answered = {"role": "assistant", "content": None, "reasoning": "Three?", "reasoning_content": "Three?"}
        messages = [{"role": "user", "content": "a"}, answered, {"role": "user", "content": "b"}]
        tokens = (await http.whole("/tokenize", messages=messages))["tokens"]
        return str((await http.whole("/detokenize", tokens=tokens))["prompt"])

    with saying(TEXT) as app:
        assert "<think>\nThree?\n</think>" in app.run(shown)
        messages = [{"role": "user", "content": "a", "reasoning": "b"}]
        response = app.run(lambda http: http.post(PATH, json={"model": "tiny", "messages": messages}))
        assert (response.status_code, response.json()["error"]["param"]) == (400, "messages[0].reasoning")


@pytest.mark.parametrize("length", [0, 40])
def test_a_response_has_an_item_for_it(length: int) -> None:
    body = {"input": "Hi", "temperature": 0, "include": ["message.output_text.logprobs"]}
    with saying(TEXT, length=length) as app:
        whole = app.whole("/v1/responses", **body)
        prompt = [{"role": "user", "content": "Hi"}, *whole["output"], {"role": "user", "content": "And?"}]
        again = app.whole("/v1/responses", input=prompt, temperature=0)
        stream = app.run(lambda http: http.post("/v1/responses", json={**body, "model": "tiny", "stream": True}))
    thought, message = whole["output"]
    assert (thought["type"], thought["summary"]) == ("reasoning", [])
    assert thought["content"] == [{"type": "reasoning_text", "text": THOUGHT}]
    (part,) = message["content"]
    assert part["text"] == ANSWER
    details = whole["usage"]["output_tokens_details"]
    assert details["reasoning_tokens"] == tokens_up_to(TEXT, "</think>", tokenizer_with(THINKS, specials=MARKS))
    # a score for each token of the answer, the last of which ends it
    assert "".join(score["token"] for score in part["logprobs"][:-1]).lstrip() == ANSWER
    assert again["output"][0]["content"] == thought["content"]

    events = [json.loads(line.removeprefix("data: ")) for line in stream.text.splitlines() if line.startswith("data")]
    assert "".join(one["delta"] for one in events if one["type"] == "response.reasoning_text.delta") == THOUGHT
    kinds = list(dict.fromkeys(one["type"] for one in events))
    assert kinds.index("response.reasoning_text.done") < kinds.index("response.output_text.delta")
    done = [one["item"] for one in events if one["type"] == "response.output_item.done"]
    assert [{**item, "id": ""} for item in done] == [{**item, "id": ""} for item in whole["output"]]
