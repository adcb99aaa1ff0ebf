"""An answer that is begun on one replica and finished on another reads as one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goose_ray.api.calls import Delta, GenerateCall, PromptInfo
from goose_ray.api.failover import SentAnswer
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.errors import EngineDeadError

CALL = GenerateCall(request_id="r", prompt="a", sampling=SamplingParams(max_tokens=9), clip_max_tokens=False)

# an answer as (token id, its text) pairs; some tokens end inside a character and give no text of their own
ANSWER = st.lists(st.tuples(st.integers(0, 9), st.text(max_size=3)), min_size=1, max_size=12)


def run_of(answer: list[tuple[int, str]], cuts: list[int], num_thought: int = 0) -> list[Delta]:
    """The answer in steps: a step ends after each of the `cuts` and at the end. It begins with `num_thought` tokens of
    thinking.
    """
    ends = sorted({min(cut, len(answer)) for cut in cuts if cut > 0} | {len(answer)})
    deltas = []
    for start, end in zip([0, *ends], ends, strict=False):
        part = answer[start:end]
        deltas.append(
            Delta(
                text="".join(text for _, text in part[max(0, num_thought - start) :]),
                reasoning="".join(text for _, text in part[: max(0, num_thought - start)]),
                token_ids=tuple(token for token, _ in part),
                prompt=PromptInfo(3) if start == 0 else None,
                finish_reason="length" if end == len(answer) else None,
            )
        )
    return deltas


@given(ANSWER, st.lists(st.integers(1, 12)), st.lists(st.integers(1, 12)), st.integers(0, 12), st.integers(0, 12))
def test_nothing_is_missing_and_nothing_comes_twice(
    answer: list[tuple[int, str]], first_cuts: list[int], second_cuts: list[int], died_after: int, num_thought: int
) -> None:
    sent = SentAnswer()
    first = run_of(answer, first_cuts, num_thought)
    received = [sent.unsent(delta) for delta in first[: min(died_after, len(first) - 1)]]
    sent.start_run(CALL)
    received += [sent.unsent(delta) for delta in run_of(answer, second_cuts, num_thought)]
    new = [delta for delta in received if delta is not None]
    assert [token for delta in new for token in delta.token_ids] == [token for token, _ in answer]
    assert "".join(delta.reasoning for delta in new) == "".join(text for _, text in answer[:num_thought])
    assert "".join(delta.text for delta in new) == "".join(text for _, text in answer[num_thought:])
    assert [delta.prompt for delta in new if delta.prompt] == [PromptInfo(3)]
    assert [delta.finish_reason for delta in new if delta.finish_reason] == ["length"]


def test_another_answer_is_not_spliced() -> None:
    sent = SentAnswer()
    sent.unsent(Delta(text="ab", token_ids=(1, 2), prompt=PromptInfo(1)))
    sent.start_run(CALL)
    with pytest.raises(EngineDeadError, match="different answer"):
        sent.unsent(Delta(text="ax", token_ids=(1, 3)))


def test_two_models_do_not_share_an_answer() -> None:
    """As when an update exchanges the model while an answer is under way."""
    sent = SentAnswer()
    sent.unsent(Delta(text="ab", token_ids=(1, 2), prompt=PromptInfo(1, model_id="old")))
    sent.start_run(CALL)
    with pytest.raises(EngineDeadError, match="another model: new"):
        sent.unsent(Delta(text="abc", token_ids=(1, 2, 3), prompt=PromptInfo(1, model_id="new")))


def test_a_replica_that_dies_behind_its_last_word_is_not_heard_again() -> None:
    sent = SentAnswer()
    assert not sent.finished
    sent.unsent(Delta(text="a", token_ids=(1,), prompt=PromptInfo(1)))
    assert not sent.finished
    sent.unsent(Delta(text="b", token_ids=(2,), finish_reason="length"))
    assert sent.finished


def test_the_next_replica_is_told_what_was_passed_on_and_has_to_get_further() -> None:
    sent = SentAnswer()
    said = Delta(text="ab", token_ids=(1, 2), prompt=PromptInfo(1))
    more = Delta(text="c", token_ids=(3,))
    assert sent.start_run(CALL) == CALL
    got_further = [sent.advanced]
    assert sent.unsent(said) == said
    got_further.append(sent.advanced)
    assert sent.start_run(CALL).committed_ids == (1, 2)
    assert sent.unsent(said) is None
    got_further.append(sent.advanced)
    assert sent.unsent(more) == more
    got_further.append(sent.advanced)
    assert got_further == [False, True, False, True]
