"""The tree policies by name. One line a policy."""

from collections.abc import Callable

from goose.policies.autoregressive import AutoregressivePolicy
from goose.policies.base import TreePolicy
from goose.policies.chain import ChainPolicy
from goose.policies.goose import GoosePolicy
from goose.sources.registry import SourceSet

__all__ = ["POLICIES"]

POLICIES: dict[str, Callable[[SourceSet], TreePolicy]] = {
    "autoregressive": lambda sources: AutoregressivePolicy(),
    "chain": ChainPolicy,
    "goose": GoosePolicy,
}
