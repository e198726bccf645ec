"""The results of single audit tests: findings that hold or fail, lower bounds, and scores."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gnomon.audit.bounds import Band

FALSE_ALARM_RATE = 1e-6
"""Probability with which each test of a distribution may fail although the distribution is the declared one."""


@dataclass(frozen=True)
class Finding:
    """The result of one test of the audit.

    >>> print(Finding("S", "one record moves the sum by", 1.0, "at most 1 C", True))
    S  one record moves the sum by                        1  at most 1 C               ok
    """

    part: str
    """Letter of the audit part: S sensitivity, W noise, Q sampling."""
    what: str
    """The quantity that was measured."""
    value: float
    allowed: str
    """The values that are allowed, in words."""
    ok: bool

    @classmethod
    def of(cls, part: str, what: str, band: Band) -> Finding:
        """Return the finding for a band; its value is the extreme that is nearer to leaving the band."""
        below = band.low > 0 and band.smallest - band.low < band.high - band.largest
        nearest = band.smallest if below else band.largest
        low = f"{band.low:.3g} to " if band.low > 0 else "at most "
        return cls(part, what, nearest, f"{low}{band.high:.3g}", band.ok)

    def __str__(self) -> str:
        verdict = "ok" if self.ok else "VIOLATED"
        return f"{self.part:<2} {self.what:<42} {self.value:>9.4g}  {self.allowed:<24}  {verdict}"


@dataclass(frozen=True)
class LowerBound:
    """A lower bound on mu, the number of standard deviations by which one record moves a release, and on epsilon.

    >>> LowerBound("S and W", 0.7, 0.98).epsilon
    0.98
    """

    name: str
    mu: float
    epsilon: float


@dataclass(frozen=True)
class Scores:
    """Scores of an observer for releases with and without a canary, in units of the clip bound."""

    inside: Tensor
    outside: Tensor


def non_finite_values(name: str, releases: Tensor) -> list[Finding]:
    """Return a failed finding if a release contains NaN or infinity, else an empty list.

    >>> [finding.ok for finding in non_finite_values("all", torch.tensor([[float("nan")]]))]
    [False]
    """
    count = int((~torch.isfinite(releases)).sum())
    return [Finding("W", f"{name}: non-finite values", count, "none", False)] if count else []
