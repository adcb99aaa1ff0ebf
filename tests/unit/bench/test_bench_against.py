"""`goose bench transformers`: its opponents decode the same, and everyone answers every prompt."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest
from fakes import EOS, FakeRunner, FakeTokenizer, looping_model
from tiny_models import tiny_model

from goose_ray.assembly import ReplicaParts
from goose_ray.bench.engine.references import TokenIds
from goose_ray.bench.speed.against import AgainstRun
from goose_ray.bench.speed.opponents import ContinuousBatching, OneAtATime, PaddedBatches
from goose_ray.bench.speed.speed_run import Contender
from goose_ray.config import EngineConfig

PROMPTS: list[TokenIds] = [(3, 1, 4, 1, 5), (9, 2, 6), (5, 3, 5, 8, 9, 7, 9)]


@pytest.mark.filterwarnings("ignore")
def test_batches_of_either_kind_decode_as_one_at_a_time() -> None:
    model = tiny_model("llama")
    alone = OneAtATime(model).answers(PROMPTS, 6)
    assert [len(reply) for reply in alone] == [6, 6, 6]
    assert PaddedBatches(model, 2).answers(PROMPTS, 6) == alone
    continuous = ContinuousBatching(model, 2, max_rows=16, num_tokens=512)
    assert continuous.answers(PROMPTS, 6) == alone
    continuous.close()


class Fixed:
    name = "fixed"

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.is_closed = False

    def answers(self, prompts: Sequence[TokenIds], max_tokens: int) -> list[TokenIds]:
        self.asked.append(len(prompts))
        return [prompt[:max_tokens] for prompt in prompts]

    def close(self) -> None:
        self.is_closed = True


def test_all_answer_all_prompts_in_groups_of_two_rounds() -> None:
    fixed, ticks = Fixed(), count()
    runner = FakeRunner(looping_model(256), vocab_size=256, num_slots=1024, max_model_len=256)
    run = AgainstRun(
        parts=ReplicaParts(Path("fake"), FakeTokenizer(specials=(EOS,)), runner),
        engine=EngineConfig(budget=8),
        opponent=fixed,
        contenders=[Contender("autoregressive", 8), Contender("chain", 8)],
        max_tokens=5,
        concurrency=2,
        clock=lambda: float(next(ticks)),
    )
    paces = run.measure([(number, number + 1) for number in range(1, 10)])
    # or else the next one's batches would have this one's size
    assert fixed.is_closed
    assert list(paces) == ["fixed", "autoregressive:8", "chain:8"]
    # One to warm up, then groups of two rounds of two.
    assert fixed.asked == [1, 4, 4, 1]
    assert paces["fixed"].replies == [(number, number + 1) for number in range(1, 10)]
    assert paces["fixed"].tokens_per_second == 18 / 3
    assert [len(reply) for reply in paces["chain:8"].replies] == [5] * 9
    assert paces["chain:8"].replies == paces["autoregressive:8"].replies
