"""The Beta distribution of a probability of which some trials are known, with its quantiles. Plain Python floats.

What `goose.posterior` answers with.
"""

import math
from dataclasses import dataclass

__all__ = ["Beta"]

# Terms of the continued fraction; about sqrt(alpha + beta) are needed.
_MAX_TERMS = 20_000
_PRECISION = 1e-15
# Stands for zero where the continued fraction would divide by it.
_TINY = 1e-300


@dataclass(frozen=True, slots=True)
class Beta:
    """Density proportional to p^(alpha - 1) (1 - p)^(beta - 1). Raises ValueError unless both are above 0."""

    alpha: float
    beta: float

    def __post_init__(self) -> None:
        if not (self.alpha > 0 and self.beta > 0 and math.isfinite(self.alpha + self.beta)):
            raise ValueError(f"alpha and beta must be above 0 and finite, not {self.alpha} and {self.beta}")

    @classmethod
    def around(cls, mean: float, strength: float) -> "Beta":
        """Worth `strength` trials of which a share `mean` succeeded; `mean` must lie inside 0..1."""
        return cls(mean * strength, (1.0 - mean) * strength)

    @classmethod
    def of_trials(cls, succeeded: float, tried: float) -> "Beta":
        """The posterior of Jeffreys' prior Beta(1/2, 1/2)."""
        return cls(0.5, 0.5).updated(succeeded, tried)

    @property
    def mean(self) -> float:
        return self.alpha / self.strength

    @property
    def strength(self) -> float:
        """Trials that it is worth."""
        return self.alpha + self.beta

    def updated(self, succeeded: float, tried: float) -> "Beta":
        """The posterior after more trials; they may be weighted. Raises ValueError unless 0 <= succeeded <= tried."""
        if not 0 <= succeeded <= tried:
            raise ValueError(f"of {tried} trials {succeeded} cannot have succeeded")
        return Beta(self.alpha + succeeded, self.beta + tried - succeeded)

    def cdf(self, p: float) -> float:
        """P(probability <= p): the regularised incomplete beta function, by its continued fraction (DLMF 8.17.22)."""
        if p <= 0.0:
            return 0.0
        if p >= 1.0:
            return 1.0
        # Where the fraction converges slowly, that of the other tail converges fast.
        if p > (self.alpha + 1) / (self.strength + 2):
            return 1.0 - Beta(self.beta, self.alpha)._lower_tail(1.0 - p)
        return self._lower_tail(p)

    def quantile(self, share: float) -> float:
        """The p with `cdf(p) == share`, by bisection. Raises ValueError unless `share` lies in 0..1."""
        if not 0 <= share <= 1:
            raise ValueError(f"share must lie in 0..1, not {share}")
        if share in (0.0, 1.0):
            return float(share)
        low, high = 0.0, 1.0
        while high - low > 1e-12:
            middle = (low + high) / 2
            if self.cdf(middle) < share:
                low = middle
            else:
                high = middle
        return (low + high) / 2

    def interval(self, share: float = 0.95) -> tuple[float, float]:
        """The central interval that holds the probability with that probability."""
        outside = (1.0 - share) / 2
        return self.quantile(outside), self.quantile(1.0 - outside)

    def _lower_tail(self, p: float) -> float:
        log_norm = math.lgamma(self.alpha) + math.lgamma(self.beta) - math.lgamma(self.strength)
        log_front = self.alpha * math.log(p) + self.beta * math.log1p(-p) - log_norm
        return math.exp(log_front) / self.alpha / self._fraction(p)

    def _fraction(self, p: float) -> float:
        """1 + d1 / (1 + d2 / (1 + ...)), from the front: the convergent is the product of ratios upper * lower."""
        value, upper, lower = 1.0, 1.0, 0.0
        for term in range(1, _MAX_TERMS):
            half = term // 2
            at = self.alpha + term
            if term % 2:
                step = -(self.alpha + half) * (self.strength + half) * p / ((at - 1) * at)
            else:
                step = half * (self.beta - half) * p / ((at - 1) * at)
            lower = 1.0 / (1.0 + step * lower or _TINY)
            upper = 1.0 + step / upper or _TINY
            value *= upper * lower
            if abs(upper * lower - 1.0) < _PRECISION:
                break
        return value
