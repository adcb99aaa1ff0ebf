"""Where an output ends, by token ids and by text."""

import pytest

from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.engine.stopping import StopMatch, StopRules, TokenCut, find_stop_string, held_back

STOP = 2


def rules(*, max_tokens: int = 100, stop_token_ids: tuple[int, ...] = (), ignore_eos: bool = False) -> StopRules:
    sampling = SamplingParams(max_tokens=max_tokens, stop_token_ids=stop_token_ids, ignore_eos=ignore_eos)
    return StopRules.of(sampling, (STOP,))


def test_tokens_before_any_stop_are_all_kept() -> None:
    assert rules().cut([10, 11], 0) == TokenCut(2, 2, None, None)


def test_b3_a_stop_token_before_the_limit_wins_over_it() -> None:
    # sglang 31599: six tokens in one step, a limit of five, the third is the stop token.
    assert rules(max_tokens=5).cut([10, 11, STOP, 20, 21, 22], 0) == TokenCut(3, 2, "stop", None)


def test_b4_a_stop_token_first_in_the_accepted_run_ends_it() -> None:
    # sglang 30291: 8 tokens out, 10 allowed, accepted [EOS, t, t'].
    assert rules(max_tokens=10).cut([STOP, 20, 21], 8) == TokenCut(1, 0, "stop", None)


def test_a_stop_token_on_the_limit_is_a_stop() -> None:
    assert rules(max_tokens=3).cut([10, 11, STOP], 0) == TokenCut(3, 2, "stop", None)


def test_a_stop_token_behind_the_limit_is_none() -> None:
    assert rules(max_tokens=2).cut([10, 11, STOP], 0) == TokenCut(2, 2, "length", None)


def test_b7_the_limit_cuts_the_accepted_run() -> None:
    assert rules(max_tokens=10).cut([10, 11, 12, 13], 8) == TokenCut(2, 2, "length", None)


def test_the_limit_is_reached_exactly() -> None:
    assert rules(max_tokens=10).cut([10, 11], 8) == TokenCut(2, 2, "length", None)


def test_b8_nothing_behind_eos_is_kept() -> None:
    assert rules().cut([3, 4, STOP, 5, 6, 7], 0).num_kept == 3


def test_b9_the_first_of_many_end_tokens_ends_it() -> None:
    assert rules().cut([STOP] * 48, 3) == TokenCut(1, 0, "stop", None)


def test_ignored_eos_is_a_token_like_any_other() -> None:
    assert rules(max_tokens=4, ignore_eos=True).cut([STOP, STOP], 0) == TokenCut(2, 2, None, None)


def test_a_stop_token_id_is_named_and_eos_is_not() -> None:
    assert rules(stop_token_ids=(7,)).cut([1, 7], 0) == TokenCut(2, 1, "stop", 7)
    assert rules(stop_token_ids=(STOP,)).cut([1, STOP], 0).stop_token_id is None
    assert rules(stop_token_ids=(STOP,), ignore_eos=True).cut([1, STOP], 0).stop_token_id == STOP


def test_all_token_ids_are_those_that_end_the_output() -> None:
    assert rules(stop_token_ids=(7,)).all_token_ids == {STOP, 7}
    assert rules(stop_token_ids=(7,), ignore_eos=True).all_token_ids == {7}


@pytest.mark.parametrize(
    ("text", "stops", "match"),
    [
        ("no stop here", ["END"], None),
        ("abcENDxEND", ["END"], StopMatch(3, 6, "END")),
        # complete first, although begun later
        ("abcd", ["abcd", "bc"], StopMatch(1, 3, "bc")),
        # complete together: the longest
        ("xabc", ["c", "abc", "bc"], StopMatch(1, 4, "abc")),
        ("aab", ["ab", "aab"], StopMatch(0, 3, "aab")),
    ],
)
def test_find_stop_string(text: str, stops: list[str], match: StopMatch | None) -> None:
    assert find_stop_string(text, stops) == match


@pytest.mark.parametrize(
    ("text", "stops", "length"),
    [
        ("", ["END"], 0),
        ("abc", ["END"], 0),
        ("abcE", ["END"], 1),
        ("abcEN", ["END", "N!"], 2),
        ("abcEN", ["N!"], 1),
        # a whole stop string is a match, not a beginning
        ("abcEND", ["END"], 0),
        ("aaa", ["aaaa"], 3),
        ("EENE", ["ENDE"], 1),
    ],
)
def test_held_back(text: str, stops: list[str], length: int) -> None:
    assert held_back(text, stops) == length
