"""What models are told of tools, which format they answer in, and what is refused."""

import json
from typing import Any

import pytest
from fakes import FakeTokenizer
from tool_templates import BLIND, HERMES, LLAMA, MISTRAL, XML, tokenizer_with

from goose_ray.api.calls import ChatPrompt
from goose_ray.api.tools.choice import ToolChoiceKind
from goose_ray.api.tools.prompting import ToolPrompts
from goose_ray.errors import ConfigError, InvalidRequestError
from goose_ray.models.tokenizer import HFTokenizer

TOOL = {"type": "function", "function": {"name": "f", "description": "Does f", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "Hello"}
ARGUMENTS = {"city": "Pariß"}


def history(call_id: str = "call_1234567890") -> list[dict[str, Any]]:
    call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": ARGUMENTS}}
    return [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": "12 degrees"},
        USER,
    ]


def text_of(tokenizer: HFTokenizer, messages: list[dict[str, Any]], tools: int = 1, setting: str = "auto") -> str:
    ids = ToolPrompts(tokenizer, setting).encode(ChatPrompt(tuple(messages), (TOOL,) * tools, "auto"), 10_000)
    specials = (tokenizer.special_token_id(name) for name in ("<|im_start|>", "<|im_end|>"))
    return tokenizer.decode(ids, frozenset(token_id for token_id in specials if token_id is not None))


@pytest.mark.parametrize(
    ("template", "name"), [(HERMES, "hermes"), (LLAMA, "llama3_json"), (MISTRAL, "mistral"), (BLIND, "hermes")]
)
def test_the_template_says_which_format_it_is(template: str, name: str) -> None:
    prompts = ToolPrompts(tokenizer_with(template), "auto")
    assert prompts.format_name(ChatPrompt((USER,), (TOOL,), "auto")) == name
    # Nothing is looked for where the model may not call, or a schema says how.
    kinds: list[ToolChoiceKind] = ["none", "required", "named"]
    for kind in kinds:
        assert prompts.format_name(ChatPrompt((USER,), (TOOL,), kind)) is None
    assert prompts.format_name("a text") is None


@pytest.mark.parametrize("template", [HERMES, LLAMA, MISTRAL])
def test_tools_and_calls_reach_templates_that_know_them(template: str) -> None:
    text = text_of(tokenizer_with(template), history())
    assert json.dumps(TOOL) in text
    # As an object: a text would be quoted once more.
    assert json.dumps(ARGUMENTS, ensure_ascii=False) in text
    assert "12 degrees" in text
    assert "tool_response" not in text


def test_mistrals_templates_get_ids_as_they_want_them() -> None:
    text = text_of(tokenizer_with(MISTRAL), history())
    (call_id,) = {part.split("}")[-1][:9] for part in text.split("[TOOL_RESULTS]")[:1]}
    assert f"[TOOL_RESULTS]{call_id}:12 degrees" in text
    assert "[TOOL_RESULTS]aB3456789:" in text_of(tokenizer_with(MISTRAL), history("aB3456789"))


def test_a_template_without_a_place_for_tools_gets_them_as_text() -> None:
    system = {"role": "system", "content": "Be brief."}
    text = text_of(tokenizer_with(BLIND), [system, *history()])
    first, *turns = text.split("<|im_start|>")[1:]
    assert first.startswith("system\nBe brief.\n\nYou can call functions.")
    assert json.dumps(TOOL) in first
    called = json.dumps({"name": "f", "arguments": ARGUMENTS}, ensure_ascii=False)
    assert turns == [
        "user\nHello<|im_end|>\n",
        f"assistant\n<tool_call>\n{called}\n</tool_call><|im_end|>\n",
        "user\n<tool_response>\n12 degrees\n</tool_response><|im_end|>\n",
        "user\nHello<|im_end|>\n",
    ]
    assert text_of(tokenizer_with(BLIND), [USER]).startswith("<|im_start|>system\nYou can call functions.")
    # Without tools nothing is said of them, and calls of earlier turns are still told.
    assert "You can" not in text_of(tokenizer_with(BLIND), history(), tools=0)
    assert "<tool_call>" in text_of(tokenizer_with(BLIND), history(), tools=0)


def test_results_of_calls_made_at_once_are_one_turn() -> None:
    results = [{"role": "tool", "tool_call_id": "a", "content": text} for text in ("one", "two")]
    text = text_of(tokenizer_with(BLIND), [USER, *results])
    assert text.count("<|im_start|>") == 3
    assert "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response><|im_end|>" in text


def test_a_template_without_a_system_role_is_told_in_the_first_turn() -> None:
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + BLIND
    text = text_of(tokenizer_with(refusing), [USER])
    assert text.startswith("<|im_start|>user\nYou can call functions.")
    assert text.endswith("\n\nHello<|im_end|>\n")


def test_conversations_without_tools_are_the_templates_alone() -> None:
    for template in (HERMES, LLAMA, MISTRAL, XML, BLIND):
        tokenizer = tokenizer_with(template)
        plain = ChatPrompt((USER, {"role": "assistant", "content": "<tool_response>\n"}, USER))
        for setting in ("auto", "none"):
            ids = ToolPrompts(tokenizer, setting).encode(plain, 10_000)
            assert ids == tokenizer.apply_chat_template(plain.messages)


def refusal(template: str, setting: str, kind: ToolChoiceKind) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as refused:
        ToolPrompts(tokenizer_with(template), setting).encode(ChatPrompt((USER,), (TOOL,), kind), 10_000)
    return refused.value


def test_tools_that_nobody_could_read_calls_of_are_refused() -> None:
    assert refusal(HERMES, "none", "required").param == "tools"
    error = refusal(XML, "auto", "auto")
    assert (error.param, error.status) == ("tool_choice", 400)
    assert "tool_parser" in error.message
    # A schema makes calls of any model readable, and named formats are taken at their word.
    readable: list[tuple[str, ToolChoiceKind]] = [("auto", "required"), ("auto", "none"), ("hermes", "auto")]
    for setting, kind in readable:
        assert ToolPrompts(tokenizer_with(XML), setting).encode(ChatPrompt((USER,), (TOOL,), kind), 10_000)


def test_a_format_that_the_model_cannot_know_of_is_refused_at_start() -> None:
    for setting in ("mistral", "llama3_json"):
        with pytest.raises(ConfigError, match="tool_parser"):
            ToolPrompts(tokenizer_with(BLIND), setting)
        ToolPrompts(FakeTokenizer(), setting)


@pytest.mark.parametrize(
    ("template", "markers"), [(HERMES, ("<tool_call>", "</tool_call>")), (MISTRAL, ("[TOOL_CALLS]", "[ARGS]"))]
)
def test_special_tokens_that_calls_are_written_with_are_text(template: str, markers: tuple[str, ...]) -> None:
    tokenizer = tokenizer_with(template, specials=(*markers, "[OTHER]"))
    prompts = ToolPrompts(tokenizer, "auto")
    shown = prompts.shown_token_ids(ChatPrompt((USER,), (TOOL,), "auto"))
    text = f"a{markers[0]}b[OTHER]{markers[1]}c<|im_end|>"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, shown) == f"a{markers[0]}b{markers[1]}c"
    assert tokenizer.decode(ids, prompts.shown_token_ids(ChatPrompt((USER,), (TOOL,), "none"))) == "abc"
