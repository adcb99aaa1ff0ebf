"""What one check found."""

from dataclasses import asdict, dataclass
from enum import StrEnum

__all__ = ["Finding", "Verdict", "worst"]


class Verdict(StrEnum):
    OK = "ok"
    # it will run, less well or not everything
    WARN = "warn"
    # it will not run
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    subject: str
    verdict: Verdict
    # what is there, in a line
    found: str
    # what to do about it, in a line; empty where there is nothing to do
    remedy: str = ""

    def as_json(self) -> dict[str, str]:
        return asdict(self)


def worst(findings: list[Finding]) -> Verdict:
    """OK of none."""
    found = {finding.verdict for finding in findings}
    return next((verdict for verdict in (Verdict.FAIL, Verdict.WARN) if verdict in found), Verdict.OK)
