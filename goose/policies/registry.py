"""The tree policies by name. One line a policy."""

from collections.abc import Callable, Mapping

from goose.anisotropic.calibration_file import CalibrationFile
from goose.policies.anisotropic import AnisotropicPolicy
from goose.policies.autoregressive import AutoregressivePolicy
from goose.policies.balanced import BalancedPolicy
from goose.policies.base import TreePolicy
from goose.policies.chain import ChainPolicy
from goose.policies.goose import GoosePolicy
from goose.policies.recycling import RecyclingPolicy
from goose.policies.suffix import SuffixPolicy
from goose.sources.registry import SourceSet

__all__ = ["POLICIES", "PolicyBuilder", "calibrated"]

PolicyBuilder = Callable[[SourceSet], TreePolicy]

POLICIES: dict[str, PolicyBuilder] = {
    "anisotropic": AnisotropicPolicy,
    "autoregressive": lambda sources: AutoregressivePolicy(),
    "balanced": BalancedPolicy,
    "chain": ChainPolicy,
    "goose": GoosePolicy,
    "recycling": RecyclingPolicy,
    "suffix": SuffixPolicy,
}


def calibrated(file: CalibrationFile) -> Mapping[str, PolicyBuilder]:
    """The policies, of which `anisotropic` starts from a calibration."""

    def build(sources: SourceSet) -> TreePolicy:
        return AnisotropicPolicy(sources, weights=file.weights, texts=file.texts)

    return {**POLICIES, "anisotropic": build}
