"""The result of an audit: a sentence, a table, JSON, and the scores behind them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gnomon.accounting import digits
from gnomon.audit.claim import Claim
from gnomon.audit.findings import Finding, LowerBound
from gnomon.audit.onerun import OneRun
from gnomon.audit.parts import Scores


@dataclass(frozen=True)
class Report:
    """What an audit found.

    >>> from gnomon.accounting import Poisson
    >>> report = Report(Claim(1.4147, Poisson(0.01), 1000, 1e-5), 0.999, (), (LowerBound("S and W", 0.7, 0.98),))
    >>> print(report.sentence())
    claimed epsilon 1.00, audited lower bound 0.98 at 99.9 % confidence: consistent
    """

    claim: Claim
    confidence: float
    findings: tuple[Finding, ...]
    bounds: tuple[LowerBound, ...]
    scores: Mapping[str, Scores] | None = None
    run: OneRun | None = None
    method: str = ""
    caveats: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def epsilon(self) -> float:
        """The audited lower bound: the largest of all, with the confidence shared among them."""
        whole = [self.run.epsilon] if self.run is not None else []
        return max([bound.epsilon for bound in self.bounds] + whole, default=0.0)

    @property
    def failed(self) -> list[str]:
        """What was violated."""
        found = [f"{one.part} {one.what}" for one in self.findings if not one.ok]
        found += [f"lower bound {one.name}" for one in self.bounds if self._exceeds(one)]
        if self.run is not None and self.run.epsilon > self.claim.epsilon:
            found.append("lower bound of the whole run")
        return found

    def _exceeds(self, bound: LowerBound) -> bool:
        """A bound by PLD above a claim by PLD is one of mu; other accountants may claim less than PLD does."""
        beyond = self.claim.accountant != "pld" and bound.epsilon > self.claim.epsilon
        return bound.mu > self.claim.mu or beyond

    @property
    def ok(self) -> bool:
        """Whether nothing contradicts the claim."""
        return not self.failed

    def sentence(self) -> str:
        """The verdict in one line."""
        verdict = "consistent" if self.ok else "VIOLATED"
        return (
            f"claimed epsilon {digits(self.claim.epsilon, 2)}, "
            f"audited lower bound {digits(self.epsilon, 2, lower=True)} "
            f"at {100 * self.confidence:.6g} % confidence: {verdict}"
        )

    def table(self) -> str:
        """All tests and bounds."""
        lines = [
            f"{self.method or 'audit'}, noise multiplier {self.claim.noise_multiplier:.5g}, "
            f"{self.claim.sampler.name}, {self.claim.steps} steps, delta = {self.claim.delta:g}",
            "",
            *map(str, self.findings),
            "",
            f"{'lower bounds':<24} {'mu':>9} {'epsilon':>9}",
            f"{'claimed':<24} {self.claim.mu:>9.4f} {digits(self.claim.epsilon):>9}",
        ]
        lines += [f"{one.name:<24} {one.mu:>9.4f} {digits(one.epsilon, lower=True):>9}" for one in self.bounds]
        if self.run is not None:
            guesses = f"{self.run.right} of {self.run.guesses} guesses"
            lines.append(f"{'whole run':<24} {'':>9} {digits(self.run.epsilon, lower=True):>9}  {guesses}")
        lines += ["", *(f"CAVEAT: {caveat}" for caveat in self.caveats)] if self.caveats else []
        if not self.ok:
            lines += ["", "VIOLATED:", *(f"  {name}" for name in self.failed)]
        return "\n".join([*lines, "", self.sentence()])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, which has no infinity: None stands for it."""
        values: dict[str, Any] = {
            "consistent": self.ok,
            "sentence": self.sentence(),
            "method": self.method,
            "caveats": list(self.caveats),
            "claim": {
                "epsilon": _plain(self.claim.epsilon),
                "delta": self.claim.delta,
                "noise_multiplier": self.claim.noise_multiplier,
                "sampler": self.claim.sampler.name,
                "steps": self.claim.steps,
                "adjacency": self.claim.adjacency,
                "accountant": self.claim.accountant,
            },
            "confidence": self.confidence,
            "lower_bound": _plain(self.epsilon),
            "bounds": [vars(one) | {"epsilon": _plain(one.epsilon)} for one in self.bounds],
            "findings": [vars(one) | {"value": _plain(one.value)} for one in self.findings],
            "violated": self.failed,
            "seconds": round(self.seconds, 3),
        }
        if self.run is not None:
            names = ("canaries", "guesses", "right", "epsilon")
            values["whole_run"] = {name: getattr(self.run, name) for name in names}
        return values

    def json(self) -> str:
        """The report for machines."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def __str__(self) -> str:
        return self.table()


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
