"""Thinking in the text of an answer: where it begins and ends, and that no cut of the text matters."""

from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from goose_ray.api.reasoning.parser import ReasoningParser


def read(pieces: Sequence[str], *, is_begun: bool) -> tuple[str, str]:
    parser = ReasoningParser(is_begun=is_begun)
    parts = [*map(parser.feed, pieces), parser.finish()]
    return "".join(part.reasoning for part in parts), "".join(part.content for part in parts)


# the text, what is thinking in it, and what is the answer, where the model begins to think of its own accord
OF_ITS_OWN_ACCORD = [
    ("<think>\nOne,\n two.\n</think>\n\nThree.\n", "One,\n two.", "Three.\n"),
    ("\n <think>a</think>b", "a", "b"),
    ("<think>\n\n</think>\n\nNo need.", "", "No need."),
    ("<think>a < b </thin </think >c", "a < b </thin </think >c", ""),
    ("<think>cut off, \n", "cut off,", ""),
    ("<think>cut </thin", "cut </thin", ""),
    ("<think>a</think>b</think> <think>c", "a", "b</think> <think>c"),
    ("  No thought: <think>x</think>", "", "  No thought: <think>x</think>"),
    ("<thin", "", "<thin"),
    ("<thinking>", "", "<thinking>"),
    (" \n", "", " \n"),
    ("", "", ""),
]


@pytest.mark.parametrize(("text", "reasoning", "content"), OF_ITS_OWN_ACCORD)
def test_of_its_own_accord(text: str, reasoning: str, content: str) -> None:
    assert read([text], is_begun=False) == (reasoning, content)
    assert read(list(text), is_begun=False) == (reasoning, content)


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("\nOne.\n</think>\n\nTwo.", "One.", "Two."),
        ("</think>\nAt once.", "", "At once."),
        ("<think>\nSaid again.</think>x", "Said again.", "x"),
        ("<thin air", "<thin air", ""),
        ("never ends </think", "never ends </think", ""),
        ("  \n", "", ""),
    ],
)
def test_begun_by_the_prompt(text: str, reasoning: str, content: str) -> None:
    assert read([text], is_begun=True) == (reasoning, content)
    assert read(list(text), is_begun=True) == (reasoning, content)


pieces = st.lists(st.sampled_from(["<think>", "</think>", "<", "</", "think", ">", " ", "\n", "a", "é"]), max_size=12)


@settings(max_examples=100, deadline=None)
@given(pieces, st.booleans())
def test_no_cut_matters_and_nothing_but_white_space_and_marks_is_lost(parts: list[str], is_begun: bool) -> None:
    text = "".join(parts)
    whole = read([text], is_begun=is_begun)
    assert read(list(text), is_begun=is_begun) == whole
    assert read(parts, is_begun=is_begun) == whole
    reasoning, content = whole
    assert "</think>" not in reasoning
    left = text.replace(reasoning, "", 1)
    left = left.removesuffix(content)
    assert left.replace("<think>", "", 1).replace("</think>", "", 1).strip(" \n") == ""
