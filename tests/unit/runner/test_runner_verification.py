"""The walk where all choices are known beforehand is the one that `goose.verify.walk` takes, tree by tree."""

import numpy as np
import torch
from runner_steps import Part, build_step

from goose.verify import walk
from goose_ray.runner.verification import RowScores, verify_trees

# Few tokens, so that siblings often hold the same one, and choices often meet them.
_VOCAB = 3


def test_rows_that_are_decided_are_walked_as_one_by_one() -> None:
    rng = np.random.default_rng(11)
    lengths = set()
    for _ in range(300):
        parts, free = [], 0
        for number in range(int(rng.integers(1, 5))):
            num_drafts = int(rng.integers(0, 12))
            parents = [int(rng.integers(0, node + 1)) for node in range(num_drafts)]
            drafts = (rng.integers(0, _VOCAB, num_drafts).tolist(), parents)
            chain = rng.integers(0, _VOCAB, int(rng.integers(1, 4))).tolist()
            parts.append(Part(chain=chain, context_slots=[], drafts=drafts, request_id=str(number)))
            free += len(chain) + num_drafts
        batch = build_step(parts, np.arange(free))
        chosen = rng.integers(0, _VOCAB, batch.num_rows)
        scores = RowScores(
            decided=np.ones(len(parts), dtype=np.bool_),
            decided_ids=chosen,
            kept_logits=torch.empty(0, _VOCAB),
            kept_index=np.full(batch.num_rows, -1),
            harvest=None,
            prompt_logprobs=(),
        )
        for step, path in zip(batch.sequences, verify_trees(batch, scores), strict=True):
            assert step.tree is not None
            assert path is not None
            of_tree = chosen[step.row_start + step.num_chain - 1 : step.row_end].tolist()
            expected = walk(step.tree, of_tree.__getitem__)
            assert path.accepted_nodes.tolist() == expected.accepted_nodes.tolist()
            assert path.token_ids.tolist() == expected.token_ids.tolist()
            lengths.add(len(path.accepted_nodes))
    assert lengths >= {0, 1, 2, 3}
