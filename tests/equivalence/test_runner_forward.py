"""One flattened forward of several sequences against the model's own forward of every root-to-node path."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from runner_steps import Part, SlotDealer, build_step
from tiny_models import FAMILIES, VOCAB_SIZE, WINDOW, tiny_model
from transformers import PreTrainedModel

from goose_ray.runner.local import LocalRunner

_NUM_SLOTS = 256


def _own_logits(model: PreTrainedModel, tokens: Sequence[int]) -> torch.Tensor:
    """[vocab] at the last token."""
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0, -1]
    return logits


def _expected(model: PreTrainedModel, context: Sequence[int], part: Part) -> torch.Tensor:
    """[rows, vocab]: a plain forward for each row, over the context and the path down to it."""
    rows = [_own_logits(model, [*context, *part.chain[: i + 1]]) for i in range(len(part.chain))]
    if (tree := part.tree) is not None:
        for node in range(1, tree.num_nodes):
            path = tree.token_ids[tree.path_to(node)].tolist()
            rows.append(_own_logits(model, [*context, *part.chain, *path]))
    return torch.stack(rows)


@pytest.mark.parametrize("slot_seed", [None, 5], ids=["slots-in-order", "slots-at-random"])
@pytest.mark.parametrize("family", FAMILIES)
def test_mixed_batch_equals_plain_forwards_of_every_path(family: str, slot_seed: int | None) -> None:
    model = tiny_model(family)
    runner = LocalRunner(tiny_model(family), model_id=family, num_slots=_NUM_SLOTS)
    dealer = SlotDealer(_NUM_SLOTS, seed=slot_seed)
    draw = np.random.default_rng(3)

    def tokens(count: int) -> list[int]:
        return [int(token) for token in draw.integers(0, VOCAB_SIZE, count)]

    # Contexts first: alone, and longer than the window where there is one.
    contexts = [tokens(count) for count in (0, 5, 2 * WINDOW, WINDOW, 3 * WINDOW + 1, WINDOW - 2)]
    context_slots = [dealer.deal(len(context)).tolist() for context in contexts]
    prefills = [
        (Part(chain=context), np.array(slots))
        for context, slots in zip(contexts, context_slots, strict=True)
        if context
    ]
    for part, slots in prefills:
        runner.logits(build_step([part], slots))

    fan = (tokens(9), [0, 0, 1, 1, 3, 0, 6, 7, 8])
    deep = (tokens(WINDOW + 2), list(range(WINDOW + 2)))
    parts = [
        # a first chunk, a further chunk, a tree on the anchor, a last chunk with its tree, plain decoding, and a tree
        # whose last node alone stands within one window of the start
        Part(chain=tokens(WINDOW + 4), context_slots=context_slots[0]),
        Part(chain=tokens(6), context_slots=context_slots[1]),
        Part(chain=tokens(1), context_slots=context_slots[2], drafts=fan),
        Part(chain=tokens(4), context_slots=context_slots[3], drafts=deep),
        Part(chain=tokens(1), context_slots=context_slots[4], drafts=([], [])),
        Part(chain=tokens(1), context_slots=context_slots[5], drafts=(tokens(5), [0, 1, 2, 3, 0])),
    ]
    ours = runner.logits(build_step(parts, dealer.deal(sum(part.num_rows for part in parts))))
    expected = torch.cat([_expected(model, context, part) for context, part in zip(contexts, parts, strict=True)])
    # Rounding of other shapes: up to 3e-6 of the largest logit.
    torch.testing.assert_close(ours, expected, rtol=0, atol=5e-6 * float(expected.abs().max()))


def test_rows_may_lie_in_a_run_of_slots_in_any_order() -> None:
    """A row's key is in its own slot: seen where only some of the rows are kept, as after a verified tree."""
    runner = LocalRunner(tiny_model("llama"), model_id="llama", num_slots=64)
    results = []
    for slots in ([10, 11, 12, 13, 14], [10, 13, 11, 12, 14]):
        runner.logits(build_step([Part(chain=[5, 6, 7, 8, 9])], np.array(slots)))
        results.append(runner.logits(build_step([Part(chain=[1], context_slots=slots[:2])], np.array([15]))))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_stale_slots_are_invisible(family: str) -> None:
    """A pool full of other sequences' keys changes nothing, in place or gathered."""
    prompt = np.random.default_rng(0).integers(0, VOCAB_SIZE, 2 * WINDOW).tolist()
    results = []
    for dirty in (False, True):
        runner = LocalRunner(tiny_model(family), model_id=family, num_slots=64)
        if dirty:
            foreign = Part(chain=[token ^ 1 for token in range(64)])
            runner.logits(build_step([foreign], np.arange(64)))
        # Holes between its slots: the run from the first to the last is read in place.
        slots = np.delete(np.arange(20, 20 + 2 * WINDOW + 3), [3, 8])
        runner.logits(build_step([Part(chain=prompt)], slots[: 2 * WINDOW]))
        tree = Part(chain=[9], context_slots=slots[: 2 * WINDOW].tolist(), drafts=([], []))
        results.append(runner.logits(build_step([tree], slots[2 * WINDOW :])))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
