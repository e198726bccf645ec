"""The folder of a training run: reading it, checking its privacy claim, and describing it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gnomon.accounting import digits
from gnomon.figures.diagnostics import diagnostic_pictures
from gnomon.figures.training import training_pictures
from gnomon.ledger.identity import is_declared_name
from gnomon.report.commands import run_command
from gnomon.report.run_files import read_json, read_json_lines, without_unprotected
from gnomon.report.section import Cell, Section, environment_terms
from gnomon.runs.config import read_yaml
from gnomon.statement.consistency import changed_files, contradictions, recompute_epsilon
from gnomon.statement.explanation import describe_neighbours, explain, unit_noun
from gnomon.statement.statement import TOTAL_NOT_STATED

ANSWERED = "answered.jsonl"
"""A file that only the server of a deployed federation writes."""

UNFINISHED = "The run has no privacy statement yet, because it did not finish."
NO_CLAIM = "This page makes no claim."
UNCHECKED = "Epsilon could not be recomputed from the numbers of the statement; this page repeats it unchecked."


@dataclass(frozen=True)
class SavedRun:
    """The folder of `gnomon train` or `gnomon federate`.

    Everything but the name may be empty, because the run may have been killed.
    """

    name: str
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    statement: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    audit: dict[str, Any] = field(default_factory=dict)
    """The results of `gnomon audit`."""
    diagnostics: list[dict[str, Any]] = field(default_factory=list)
    public_only: dict[str, Any] = field(default_factory=dict)
    """The scores of the run's public records alone, if it had any."""
    deployed: bool = False
    """Whether this is the server of a federation of real sites, which no single command can repeat."""
    changed: list[str] = field(default_factory=list)
    """Files that differ from those for which the statement was written."""

    @classmethod
    def read(cls, folder: Path, *, unprotected: bool = True) -> SavedRun:
        """Read a run folder, with or without its unprotected values."""
        config = folder / "config.yaml"
        history, diagnostics = read_json_lines(folder / "metrics.jsonl"), read_json_lines(folder / "diagnostics.jsonl")
        if final := read_json(folder / "diagnosis.json"):
            diagnostics.append(final)
        statement = read_json(folder / "statement.json")
        return cls(
            name=folder.resolve().name,
            config=read_yaml(config) if config.exists() else {},
            history=history if unprotected else without_unprotected(history),
            statement=statement,
            environment=read_json(folder / "environment.json"),
            audit=read_json(folder / "audit.json"),
            diagnostics=diagnostics if unprotected else without_unprotected(diagnostics),
            public_only=read_json(folder / "public-only.json"),
            deployed=(folder / ANSWERED).exists(),
            changed=changed_files(statement, folder),
        )

    def objections(self) -> list[str]:
        """Return the reasons why the page must not repeat the claim of the statement; empty if it may.

        >>> SavedRun("a", statement={"guarantee": True, "epsilon": None}).objections()[0].endswith(NO_CLAIM)
        True
        """
        reasons = []
        if mismatches := contradictions(self.statement) if self.statement else []:
            reasons.append(f"The numbers of the statement contradict each other: {'; '.join(mismatches)}.")
        if self.statement.get("guarantee") and self.config.get("insecure-noise-seed") is not None:
            reasons.append("The statement claims privacy, but config.yaml seeds the noise.")
        if (last_step := self._step_after_statement()) is not None:
            reasons.append(
                f"The statement covers {self.statement['steps']:,} steps, but the run continued to step {last_step:,}."
            )
        if self.changed:
            names = " and ".join(self.changed)
            reasons.append(f"The statement was written for another version of {names}: the SHA-256 differs.")
        return [f"{reason} {NO_CLAIM}" for reason in reasons]

    def _step_after_statement(self) -> int | None:
        """Return the last recorded step, if the statement covers fewer steps."""
        stated, last = self.statement.get("steps"), self.history[-1].get("step") if self.history else None
        return last if isinstance(stated, int) and isinstance(last, int) and last > stated else None

    def claims_privacy(self) -> bool:
        """Return whether the epsilon of the run is a guarantee that the page may repeat.

        >>> SavedRun("killed").claims_privacy()
        False
        """
        return bool(self.statement.get("guarantee")) and not self.objections()

    def section(self) -> Section:
        """Return the section of the page about this run."""
        statement = self.statement
        config = {key.replace("-", "_"): value for key, value in self.config.items()}
        objections, claim = self.objections(), self.claims_privacy()
        unchecked = [UNCHECKED] if claim and recompute_epsilon(statement) is None else []
        return Section(
            title=f"{config.get('method', self.name)} on {config.get('data', 'unknown data')}",
            slug=self.name,
            kind="run",
            pictures=training_pictures(self.history, self.public_only.get("accuracy"), claim=claim or not statement),
            diagnostics=diagnostic_pictures(self.diagnostics),
            command=run_command(config, deployed=self.deployed),
            repeatable=not self.deployed,
            promise=objections or (explain(statement) if statement else [UNFINISHED]),
            guarantee=claim,
            facts=self._facts(claim),
            terms=_statement_terms(statement) if statement else [],
            caveats=[*statement.get("caveats", []), *unchecked],
            not_covered=list(statement.get("not_covered", [])),
            ledger=_ledger_terms(statement.get("ledger") or {}, statement.get("delta")),
            audit=self.audit,
            environment=environment_terms(self.environment),
            seeded=config.get("insecure_noise_seed") is not None,
        )

    def overview_row(self) -> tuple[Cell, ...]:
        """Return the row of this run in the table of all runs of a page."""
        claim = self.claims_privacy()
        epsilon = self.statement.get("epsilon") if claim else None
        accuracy = self.history[-1].get("validation/accuracy") if self.history else None
        return (
            (self.name, self.name),
            (str(self.config.get("method", "unknown")), str(self.config.get("method", ""))),
            (str(self.config.get("data", "unknown")), str(self.config.get("data", ""))),
            ("–" if epsilon is None else digits(epsilon), float("inf") if epsilon is None else epsilon),
            ("yes", "yes") if claim else ("no", "no"),
            ("–" if accuracy is None else f"{100 * accuracy:.1f}", -1.0 if accuracy is None else accuracy),
        )

    def _facts(self, claim: bool) -> list[tuple[str, str]]:
        last = self.history[-1] if self.history else {}
        facts = []
        if last.get("validation/accuracy") is not None:
            # The last line of the metrics may be missing, if the run was killed after its statement was written.
            early = isinstance(last.get("step"), int) and last["step"] < self.statement.get("steps", 0)
            name = f"test accuracy after {last['step']:,} steps" if early else "test accuracy"
            facts.append((name, f"{100 * last['validation/accuracy']:.1f} %"))
        if self.public_only.get("accuracy") is not None:
            facts.append(("public records alone, epsilon 0", f"{100 * self.public_only['accuracy']:.1f} %"))
        if self.statement:
            facts.append(("epsilon", digits(self.statement.get("epsilon")) if claim else "no claim"))
            facts.append(("delta", f"{self.statement['delta']:g}"))
            facts.append(("noisy steps", f"{self.statement['steps']:,}"))
        if last.get("seconds") is not None:
            facts.append(("training time", _duration(last["seconds"])))
        return facts


def _statement_terms(statement: dict[str, Any]) -> list[tuple[str, str]]:
    unit, adjacency = statement["unit"], statement["adjacency"]
    return [
        ("unit of protection", unit),
        ("neighbouring data", f"{describe_neighbours(adjacency, unit)} ({adjacency})"),
        ("method", statement["method"]),
        ("sampling", statement["sampler"]),
        ("accountant", statement["accountant"]),
        ("noise multiplier", f"{statement['noise_multiplier']:.6g} (in units of the clip bound)"),
        ("clip bound", "none" if statement["max_grad_norm"] is None else f"{statement['max_grad_norm']:g}"),
        ("divisor", f"{statement['expected_batch_size']:g} {unit_noun(unit)}s per step (declared, not counted)"),
        ("noisy steps released", f"{statement['steps']:,}"),
    ]


def _ledger_terms(ledger: dict[str, Any], delta: float | None) -> list[tuple[str, str]]:
    """Return what the statement says about all runs on the same data."""
    if not ledger:
        return []
    # The total of a data set that is identified by its records is for the data holder only, even if a statement has it.
    if not is_declared_name(str(ledger.get("dataset"))):
        return [("epsilon of all runs together", TOTAL_NOT_STATED)]
    spent, budget = digits(ledger.get("epsilon")), ledger.get("budget")
    conditions = [] if delta is None else [f"delta = {delta:g}"]
    conditions += [ledger["adjacency"]] if "adjacency" in ledger else []
    terms = [
        ("epsilon of all runs together", f"{spent} ({', '.join(conditions)})" if conditions else spent),
        ("runs", str(ledger.get("runs", "unknown"))),
        ("steps reserved", str(ledger.get("steps", "unknown"))),
    ]
    if budget:
        declared = ", both for settings that were fixed before the first result" if budget.get("declared") else ""
        terms.append(("budget", f"epsilon {budget['epsilon']:.15g} at delta = {budget['delta']:g}{declared}"))
    return terms


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
