"""What an audit found: tests that hold or fail, and lower bounds."""

from __future__ import annotations

from dataclasses import dataclass

from gnomon.audit.bounds import Band


@dataclass(frozen=True)
class Finding:
    """One test of the audit.

    >>> print(Finding("S", "one record moves the sum by", 1.0, "at most 1 C", True))
    S  one record moves the sum by                        1  at most 1 C               ok
    """

    part: str
    what: str
    value: float
    allowed: str
    ok: bool

    @classmethod
    def of(cls, part: str, what: str, band: Band) -> Finding:
        """The value of a band that is nearer to breaking it."""
        below = band.low > 0 and band.smallest - band.low < band.high - band.largest
        worse = band.smallest if below else band.largest
        low = f"{band.low:.3g} to " if band.low > 0 else "at most "
        return cls(part, what, worse, f"{low}{band.high:.3g}", band.ok)

    def __str__(self) -> str:
        verdict = "ok" if self.ok else "VIOLATED"
        return f"{self.part:<2} {self.what:<42} {self.value:>9.4g}  {self.allowed:<24}  {verdict}"


@dataclass(frozen=True)
class LowerBound:
    """How far apart one record moves releases at least, and the epsilon that this proves.

    >>> LowerBound("S and W", 0.7, 0.98).epsilon
    0.98
    """

    name: str
    mu: float
    epsilon: float
