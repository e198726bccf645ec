"""Diagnostics at a few steps of a run, each time of the same private records. The values are unprotected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gnomon import validate
from gnomon.data import Loader
from gnomon.diagnose.measures import evenly_spaced
from gnomon.diagnose.observer import Diagnostics
from gnomon.errors import SettingError
from gnomon.training.observer import StepView
from gnomon.training.trainer import Trainer

POINTS = 100
"""Longer lists of numbers are thinned to this many points."""

MAX_SPECTRUM_RECORDS = 1000
"""Largest number of gradients in a spectrum."""


@dataclass(frozen=True)
class DiagnosticSchedule:
    """Evenly spaced diagnostics from the first step of a run to the last.

    >>> DiagnosticSchedule(times=3).steps(100)
    [0, 50, 99]
    """

    times: int = 4
    """Number of steps that are diagnosed."""
    records: int = 100
    """Number of private records that are diagnosed."""
    shown: int = 60
    """Largest number of eigenvalues of a spectrum."""
    keep: tuple[str, ...] = ()
    """Names of the diagnostics to keep, such as `unprotected/spectrum`."""

    def __post_init__(self) -> None:
        validate.whole("times", self.times, least=2)
        validate.whole("records", self.records, least=2)
        validate.whole("shown", self.shown)

    def steps(self, planned: int) -> list[int]:
        """Return the steps before which diagnostics are computed, for a run of `planned` steps."""
        return sorted({round(n * (planned - 1) / (self.times - 1)) for n in range(self.times)})

    def attach(self, trainer: Trainer, private: Any) -> list[dict[str, Any]]:
        """Add an observer to the Trainer, and return the list that it fills during training.

        Raises:
            SettingError: during training, if none of the names in `keep` is a diagnostic of the method.
        """
        records: list[dict[str, Any]] = []
        due, loader = set(self.steps(trainer.mechanism.steps)), Loader(private)
        sample = loader.take(evenly_spaced(len(loader), self.records))
        diagnostics = Diagnostics(records.append, records=min(self.records, MAX_SPECTRUM_RECORDS), shown=self.shown)

        def observe(view: StepView) -> None:
            step = view.context.step
            if step not in due:
                return
            record = diagnostics.record(trainer.engine.preview(*sample, step=step))
            records.append({"step": step, "epoch": step / view.context.steps_per_epoch, **self._select(record)})

        trainer.observers += (observe,)
        return records

    def _select(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return the diagnostics in `keep` that the record has: some methods lack some of them."""
        selected = {name: thinned(record[name]) for name in self.keep if name in record}
        if not selected:
            raise SettingError("looks", ", ".join(self.keep), f"one of {', '.join(record)}")
        return selected


def thinned(value: Any) -> Any:
    """Return a list of more than `POINTS` numbers as [rank, number] at geometrically spaced ranks.

    Shorter lists and other values are returned as they are.

    >>> thinned([5.0, 4.0]), len(thinned(list(range(1000)))) <= POINTS
    ([5.0, 4.0], True)
    """
    if not isinstance(value, list) or len(value) <= POINTS or isinstance(value[0], list):
        return value
    ranks = torch.logspace(0, torch.tensor(float(len(value))).log10().item(), POINTS).round().long().unique().tolist()
    return [[rank, value[rank - 1]] for rank in ranks]
