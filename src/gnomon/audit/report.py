"""The report of an audit: verdict, table of findings and bounds, JSON, and scores."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gnomon.accounting import digits
from gnomon.audit.claim import Claim
from gnomon.audit.findings import Finding, LowerBound, Scores
from gnomon.audit.onerun import OneRun


@dataclass(frozen=True)
class Report:
    """The findings and lower bounds of an audit, beside the claim.

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
        """The audited lower bound on epsilon: the largest of all bounds, which share the error probability."""
        whole = [self.run.epsilon] if self.run is not None else []
        return max([bound.epsilon for bound in self.bounds] + whole, default=0.0)

    @property
    def failed(self) -> list[str]:
        """The names of all failed findings and of all lower bounds above the claim."""
        failures = [f"{finding.part} {finding.what}" for finding in self.findings if not finding.ok]
        failures += [f"lower bound {bound.name}" for bound in self.bounds if self._exceeds(bound)]
        if self.run is not None and self.run.epsilon > self.claim.epsilon:
            failures.append("lower bound of the whole run")
        return failures

    def _exceeds(self, bound: LowerBound) -> bool:
        """Return whether a lower bound contradicts the claim.

        For a claim by PLD it is enough to compare mu. Other accountants may claim a smaller epsilon than PLD for the
        same mu, so epsilon is compared as well.
        """
        epsilon_exceeds = self.claim.accountant != "pld" and bound.epsilon > self.claim.epsilon
        return bound.mu > self.claim.mu or epsilon_exceeds

    @property
    def ok(self) -> bool:
        """Whether no finding and no lower bound contradicts the claim."""
        return not self.failed

    def sentence(self) -> str:
        """Return the verdict in one line."""
        verdict = "consistent" if self.ok else "VIOLATED"
        return (
            f"claimed epsilon {digits(self.claim.epsilon, 2)}, "
            f"audited lower bound {digits(self.epsilon, 2, lower=True)} "
            f"at {100 * self.confidence:.6g} % confidence: {verdict}"
        )

    def table(self) -> str:
        """Return all findings, all lower bounds and the verdict as text."""
        lines = [
            f"{self.method or 'audit'}, noise multiplier {self.claim.noise_multiplier:.5g}, "
            f"{self.claim.sampler.name}, {self.claim.steps} steps, delta = {self.claim.delta:g}",
            "",
            *map(str, self.findings),
            "",
            f"{'lower bounds':<24} {'mu':>9} {'epsilon':>9}",
            f"{'claimed':<24} {self.claim.mu:>9.4f} {digits(self.claim.epsilon):>9}",
        ]
        lines += [f"{bound.name:<24} {bound.mu:>9.4f} {digits(bound.epsilon, lower=True):>9}" for bound in self.bounds]
        if self.run is not None:
            guesses = f"{self.run.correct} of {self.run.guesses} guesses"
            lines.append(f"{'whole run':<24} {'':>9} {digits(self.run.epsilon, lower=True):>9}  {guesses}")
        lines += ["", *(f"CAVEAT: {caveat}" for caveat in self.caveats)] if self.caveats else []
        if not self.ok:
            lines += ["", "VIOLATED:", *(f"  {name}" for name in self.failed)]
        return "\n".join([*lines, "", self.sentence()])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with None for infinity."""
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
            "bounds": [vars(bound) | {"epsilon": _plain(bound.epsilon)} for bound in self.bounds],
            "findings": [vars(finding) | {"value": _plain(finding.value)} for finding in self.findings],
            "violated": self.failed,
            "seconds": round(self.seconds, 3),
        }
        if self.run is not None:
            values["whole_run"] = {
                "canaries": self.run.canaries,
                "guesses": self.run.guesses,
                "right": self.run.correct,
                "epsilon": self.run.epsilon,
            }
        return values

    def json(self) -> str:
        """Return the report as JSON text."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def __str__(self) -> str:
        return self.table()


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
