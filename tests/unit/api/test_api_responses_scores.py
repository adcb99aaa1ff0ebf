"""`/v1/responses` with log-probabilities and functions: the same items in whatever steps the tokens come."""

import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from scripted_backend import MODEL, STATS, ScriptedBackend, post

from goose_ray.api.calls import Delta, PromptInfo, ScoredToken, TokenScores

CLOCK: dict[str, Any] = {"type": "function", "name": "clock", "parameters": {"type": "object", "properties": {}}}
CALL = ["<tool", "_call>", '{"name": "clock", ', '"arguments": {}}', "</tool_call>"]
END = "<|im_end|>"


def steps_of(tokens: Sequence[str], sizes: Iterable[int]) -> list[Delta | Exception]:
    """The tokens in steps of these sizes; the last token ends the answer and has no text."""
    scored = [TokenScores(ScoredToken(token.encode(), -0.5), (), 0) for token in tokens]
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


@pytest.mark.parametrize(
    ("tokens", "choice", "expected"),
    [
        (["{", '"zone', '": ', '"UTC"', "}"], {"type": "function", "name": "clock"}, [("clock", '{"zone": "UTC"}')]),
        (['[{"name": ', '"clock", ', '"parameters"', ": {}", "}]"], "required", [("clock", "{}")]),
        (CALL, "auto", [("clock", "{}")]),
        (["Lo", "ok", *CALL], "auto", [("Look", ["Lo", "ok"]), ("clock", "{}")]),
        (["a", " <", "b ", "<to", "ol"], "auto", [("a <b <tool", ["a", " <", "b ", "<to", "ol", END])]),
        (["Hi"], "none", [("Hi", ["Hi", END])]),
    ],
)
def test_items_are_the_same_in_any_steps(tokens: list[str], choice: Any, expected: list[Any]) -> None:
    tokens = [*tokens, END]
    for cuts in itertools.product([False, True], repeat=len(tokens) - 1):
        edges = [0, *(place for place, cut in enumerate(cuts, 1) if cut), len(tokens)]
        sizes = [end - start for start, end in itertools.pairwise(edges)]
        assert items(asked(steps_of(tokens, sizes), stream=False, tool_choice=choice)) == expected
        events = asked(steps_of(tokens, sizes), stream=True, tool_choice=choice)
        assert items(events[-1]["response"]) == expected
        said = [tokens for text, tokens in expected if isinstance(tokens, list)]
        assert streamed(events) == [token for one in said for token in one]


def test_text_behind_a_call_has_its_own_tokens() -> None:
    tokens = [*CALL, "By", "e", END]
    for sizes in ([1] * 8, [4, 1, 3], [5, 3], [3, 2, 1, 2]):
        call, message = items(asked(steps_of(tokens, sizes), stream=False, tool_choice="auto"))
        assert (call, message) == (("clock", "{}"), ("Bye", ["By", "e"]))
