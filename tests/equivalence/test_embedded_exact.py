"""The embedded model, under every policy, alone and in a batch, says token for token what transformers itself says.

The whole of this check is `goose bench exact`; here are few prompts and short replies.
"""

import pytest
import torch

from goose.policies.registry import POLICIES
from goose_ray.assembly import ReplicaParts
from goose_ray.bench.engine.decoders import Case, EngineDecoder
from goose_ray.bench.engine.references import TransformersReference
from goose_ray.bench.prompts import Conversation, encode
from goose_ray.bench.replies import greedy
from goose_ray.config import EngineConfig
from goose_ray.engine.sampling_params import SamplingParams

MAX_TOKENS = 12

_LIST = "\n".join(f"- item {i}: {word} costs {i * 37} euros" for i, word in enumerate(["apple", "pear", "plum", "fig"]))
_USER_TURNS = (
    "What is the capital of France?",
    f"Repeat this list exactly:\n{_LIST}",
    "Translate to German: The weather is nice today, and we are going to the lake.",
    "A shop sells 12 pens for 18 dollars. How much do 30 pens cost? Think step by step.",
)
_RAW = (
    'def add(a, b):\n    """Adds."""\n    return a + b\n\n\ndef subtract(a, b):\n    """Subtracts."""\n    return',
    "import numpy as np\n\nfor row in range(10):\n    for column in range(10):\n        print(row, column)\n\nfor row",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,",
    "Once upon a time, in a small village by the sea, there lived",
)


@pytest.fixture(scope="module")
def decoder(parts: ReplicaParts) -> EngineDecoder:
    return EngineDecoder(parts, EngineConfig(budget=60))


@pytest.fixture(scope="module")
def cases(parts: ReplicaParts) -> list[Case]:
    requests: list[str | Conversation] = [
        *(Conversation(({"role": "user", "content": text},)) for text in _USER_TURNS),
        *_RAW,
    ]
    return [Case(str(i), request, encode(request, parts.tokenizer, 4096)) for i, request in enumerate(requests)]


@pytest.fixture(scope="module")
def expected(parts: ReplicaParts, cases: list[Case]) -> dict[int, tuple[int, ...]]:
    replies: dict[int, tuple[int, ...]] = {}
    reference = TransformersReference(parts.path, dtype=torch.float32, device=torch.device("cpu"))
    reference.generate([case.prompt.token_ids for case in cases], MAX_TOKENS, replies.__setitem__)
    return replies


# One by one is slow, and what it could show is shown by one policy of each kind.
@pytest.mark.parametrize(
    ("policy", "concurrency"),
    [*((policy, 8) for policy in POLICIES), ("autoregressive", 1), ("goose", 1), ("suffix", 1)],
)
def test_greedy_equals_transformers(
    decoder: EngineDecoder,
    cases: list[Case],
    expected: dict[int, tuple[int, ...]],
    policy: str,
    concurrency: int,
) -> None:
    # Every other case, of either kind.
    chosen = range(0, len(cases), 2 if concurrency == 1 else 1)
    found = decoder.answers(
        [cases[i] for i in chosen], greedy(MAX_TOKENS), policy=policy, concurrency=concurrency, on_answer=lambda: None
    )
    assert found == {place: expected[i] for place, i in enumerate(chosen)}


def test_seeded_sampling_is_the_same_under_every_policy_and_in_any_batch(
    decoder: EngineDecoder, cases: list[Case]
) -> None:
    sampling = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.8, top_p=0.95, seed=11)
    runs = (("autoregressive", 1), ("balanced", 3), ("suffix", 3), ("goose", 1))
    replies = [
        decoder.answers(cases[::3], sampling, policy=policy, concurrency=concurrency, on_answer=lambda: None)
        for policy, concurrency in runs
    ]
    assert replies[1:] == replies[:1] * 3
    assert len(set(replies[0].values())) == len(replies[0])
