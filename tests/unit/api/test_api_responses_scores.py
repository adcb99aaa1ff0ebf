"""`/v1/responses` with log-probabilities and functions: the same items in whatever steps the tokens come."""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from scripted_backend import MODEL, STATS, ScriptedBackend, post

from goose_ray.api.calls import Delta, PromptInfo, ScoredToken, TokenScores

CLOCK: dict[str, Any] = {"type": "function", "name": "clock", "parameters": {"type": "object", "properties": {}}}
CALL = ["<tool", "_call>", '{"name": "clock", ', '"arguments": {}}', "</tool_call>"]
WHOLE = "".join(CALL)
NOW = ("clock", "{}")
END = "<|im_end|>"


def steps_of(tokens: Sequence[str], sizes: Iterable[int]) -> list[Delta | Exception]:
    """The tokens in steps of these sizes; the last token ends the answer and has no text."""
    offsets = [0, *itertools.accumulate(map(len, tokens))]
    scored = [
        TokenScores(ScoredToken(token.encode(), -0.5), (), at) for token, at in zip(tokens, offsets, strict=False)
    ]
    script: list[Delta | Exception] = []
    start = 0
    for size in sizes:
        end = start + size
        is_last = end == len(tokens)
        script.append(
            Delta(
                text="".join(tokens[start : end - is_last]),
                token_ids=tuple(range(start, end)),
                prompt=None if start else PromptInfo(3, tool_format="hermes"),
                finish_reason="stop" if is_last else None,
                stats=STATS if is_last else None,
                scores=tuple(scored[start:end]),
            )
        )
        start = end
    return script


def asked(script: list[Delta | Exception], *, stream: bool, **request: Any) -> Any:
    wire = {"model": MODEL, "input": "Hi", "top_logprobs": 0, "tools": [CLOCK], "stream": stream, **request}
    response = post(ScriptedBackend(script), "/v1/responses", wire)
    assert response.status_code == 200, response.text
    if not stream:
        return response.json()
    return [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]


def items(response: Any) -> list[tuple[Any, ...]]:
    """What is said, and by which tokens."""
    return [
        (item["name"], item["arguments"])
        if item["type"] == "function_call"
        else (item["content"][0]["text"], [one["token"] for one in item["content"][0]["logprobs"]])
        for item in response["output"]
    ]


def streamed(events: list[Any]) -> list[str]:
    """The tokens of all deltas of text, in order."""
    return [
        one["token"] for event in events if event["type"] == "response.output_text.delta" for one in event["logprobs"]
    ]


def all_steps(tokens: Sequence[str]) -> Iterator[list[Delta | Exception]]:
    """Every way in which the tokens may be cut into steps."""
    for cuts in itertools.product([False, True], repeat=len(tokens) - 1):
        edges = [0, *(place for place, cut in enumerate(cuts, 1) if cut), len(tokens)]
        yield steps_of(tokens, [end - start for start, end in itertools.pairwise(edges)])


@pytest.mark.parametrize(
    ("tokens", "choice", "expected"),
    [
        (["{", '"zone', '": ', '"UTC"', "}"], {"type": "function", "name": "clock"}, [("clock", '{"zone": "UTC"}')]),
        (['[{"name": ', '"clock", ', '"parameters"', ": {}", "}]"], "required", [("clock", "{}")]),
        (CALL, "auto", [("clock", "{}")]),
        (["Lo", "ok", *CALL], "auto", [("Look", ["Lo", "ok"]), ("clock", "{}")]),
        (["Look <", *CALL[1:], "B", "ye"], "auto", [("Look <_call>" + CALL[2] + CALL[3] + CALL[4] + "Bye", None)]),
        ([*CALL, "B", "ye"], "auto", [("clock", "{}"), ("Bye", [])]),
        (["Look", WHOLE, "and", WHOLE, "Bye"], "auto", [("Look", ["Look"]), NOW, ("and", []), NOW, ("Bye", [])]),
        (["a", " <", "b ", "<to", "ol"], "auto", [("a <b <tool", ["a", " <", "b ", "<to", "ol", END])]),
        (["Hi"], "none", [("Hi", ["Hi", END])]),
    ],
)
def test_items_are_the_same_in_any_steps(tokens: list[str], choice: Any, expected: list[Any]) -> None:
    tokens = [*tokens, END]
    if expected[0][1] is None:
        expected = [(expected[0][0], tokens)]
    for script in all_steps(tokens):
        events = asked(script, stream=True, tool_choice=choice)
        assert items(events[-1]["response"]) == expected
        said = [tokens for _, tokens in expected if isinstance(tokens, list)]
        assert streamed(events) == [token for one in said for token in one]
        items_done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        assert items({"output": items_done}) == expected
    assert items(asked(steps_of(tokens, [len(tokens)]), stream=False, tool_choice=choice)) == expected


def test_a_call_is_not_torn_by_text_behind_it() -> None:
    """Without log-probabilities too."""
    tokens = ['<tool_call>{"name": "clock", "arguments": {"a":', " 1}}</tool_call>", " Done", END]
    call, message = asked(steps_of(tokens, [1, 2, 1]), stream=False, top_logprobs=None)["output"]
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "clock", '{"a": 1}')
    assert message["content"][0]["text"].strip() == "Done"
