"""The grammars' part in a step's drafts: every tree of a structured output constrained, and what is forced drafted.

Forced tokens cost no search and are not rejected but where a stranger's grammar leaves it to the model how their text
is cut, so they come before what a policy proposes. They are credited to the source `grammar`. Knows no model; what the
grammars say it takes as it is.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from goose.policies.autoregressive import AutoregressivePolicy
from goose.sources.registry import SOURCE_NAMES
from goose.speculator import AUTOMATIC_NODES
from goose.tree import TokenTree
from goose_ray.config import EngineConfig
from goose_ray.engine.grammar import GrammarState
from goose_ray.engine.grammar_trees import constrain
from goose_ray.engine.grammar_vocabulary import MaskArray
from goose_ray.engine.sequence import SequenceState

__all__ = ["GrammarDrafting"]

_logger = logging.getLogger(__name__)
_FORCED_BIT = 1 << SOURCE_NAMES.index("grammar")
# Draft nodes kept free for the tokens that follow one that is forced.
_RESERVED = 8
# Of a processor: how long the trees of one step may be looked at, while everybody in the batch waits.
_PATIENCE_S = 0.05


@dataclass(frozen=True, slots=True)
class GrammarDrafting:
    """`default_policy` is that of requests without one, `max_nodes` the nodes of one tree, anchor included."""

    default_policy: str
    max_nodes: int

    @classmethod
    def of(cls, config: EngineConfig) -> "GrammarDrafting":
        return cls(config.policy, AUTOMATIC_NODES if config.budget == "auto" else config.budget)

    def num_reserved(self, sequences: Sequence[SequenceState], max_draft_nodes: int) -> int:
        """How many of the step's draft nodes no policy should use."""
        wanted = sum(
            min(_RESERVED, self.max_nodes - 1, sequence.num_remaining - 1)
            for sequence in sequences
            if sequence.grammar is not None and self._forces(sequence) and sequence.grammar.is_forced
        )
        return min(wanted, max_draft_nodes)

    def constrain(
        self, sequences: Sequence[SequenceState], trees: Sequence[TokenTree], max_draft_nodes: int
    ) -> tuple[list[TokenTree], dict[str, MaskArray]]:
        """The trees that may be verified, and masks by request id; at most `max_draft_nodes` draft nodes in all, as
        `trees` must have.
        """
        constrained: list[TokenTree] = []
        masks: dict[str, MaskArray] = {}
        left = max_draft_nodes - sum(tree.num_draft_nodes for tree in trees)
        end_s = time.thread_time() + _PATIENCE_S
        for sequence, tree in zip(sequences, trees, strict=True):
            if sequence.grammar is not None:
                room = left + tree.num_draft_nodes
                most = min(room, max(tree.num_draft_nodes, self.max_nodes - 1))
                tree, masks[sequence.request_id] = self._constrained(sequence, sequence.grammar, tree, most, end_s)
                left = room - tree.num_draft_nodes
            constrained.append(tree)
        return constrained, masks

    def _constrained(
        self, sequence: SequenceState, grammar: GrammarState, tree: TokenTree, max_draft_nodes: int, end_s: float
    ) -> tuple[TokenTree, MaskArray]:
        try:
            result = constrain(
                grammar,
                tree,
                max_depth=sequence.num_remaining - 1,
                max_draft_nodes=max_draft_nodes,
                forced_bit=_FORCED_BIT if self._forces(sequence) else 0,
                patience_s=max(0.0, end_s - time.thread_time()),
            )
        except Exception:
            # Drafts alone are lost: what may follow the anchor was found when its token was committed.
            _logger.exception("request %r goes on without drafts in this step", sequence.request_id)
            grammar.restore()
            return TokenTree.anchor_only(int(tree.token_ids[0])), grammar.mask[None]
        return result.tree, result.masks

    def _forces(self, sequence: SequenceState) -> bool:
        """Plain decoding stays plain: the policy that drafts nothing is there to be compared with."""
        return self.max_nodes > 1 and (sequence.request.policy or self.default_policy) != AutoregressivePolicy.name
