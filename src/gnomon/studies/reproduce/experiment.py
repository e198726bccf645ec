"""The description of an experiment: its lines, its axis, its settings, and the published numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from gnomon.diagnose import DiagnosticSchedule
from gnomon.errors import SettingError
from gnomon.runs.config import TrainConfig, default_settings
from gnomon.runs.setting_names import current_name
from gnomon.studies.method_specs import PUBLIC_ONLY, MethodSpec

NOISE, BUDGET = "noise-multiplier", "target-epsilon"


@dataclass(frozen=True)
class ExperimentLine:
    """One method with its settings: a row of a table, or a line of a figure.

    >>> ExperimentLine("DP-SGD", "dp-sgd", at={18.0: {"lr": 0.05}}).spec("noise-multiplier", 18.0).settings
    {'lr': 0.05}
    """

    name: str
    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    at: dict[float, dict[str, Any]] = field(default_factory=dict)
    """Further settings, by the value of the axis at which they apply."""
    published: dict[float, tuple[float, float | None]] = field(default_factory=dict)
    """The published mean and standard deviation, by the value of the axis."""
    measure: str = ""
    """The measured quantity, if it differs from the experiment's."""

    def spec(self, axis: str, value: float) -> MethodSpec:
        """Return the method with its settings at a value of the axis.

        >>> ExperimentLine("x", "pcdp", {"subspace-scope": "per-tensor"}).spec("rank", 50.0).label
        'pcdp:subspace-scope=per-tensor,rank=50'
        """
        settings = self.settings | self.at.get(value, {})
        if axis not in (NOISE, BUDGET):  # the grid of runs sets noise and budget
            settings = settings | {axis: value}
        return MethodSpec(self.method, {name: _whole_number(setting) for name, setting in settings.items()})


def _whole_number(value: Any) -> Any:
    """Return a float without fraction as an int, because values of the axis are floats and some settings are ints."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


@dataclass(frozen=True)
class Experiment:
    """One table or figure of a paper.

    >>> from gnomon.studies.reproduce.experiment_files import read_experiment
    >>> figure = read_experiment("pcdp-appendix-figure2")
    >>> figure.axis, figure.values[:2], figure.base.noise_multiplier
    ('rank', (10.0, 25.0), 22.0)
    """

    name: str
    title: str
    paper: str
    settings: dict[str, Any]
    """The settings that all runs share, by name."""
    axis: str
    """The setting that varies along the columns of the table or the horizontal axis of the figure."""
    values: tuple[float, ...]
    """The values of the axis."""
    seeds: int
    lines: tuple[ExperimentLine, ...]
    measure: str = "accuracy"
    """The measured quantity: `accuracy`, or the name of a metric whose last value counts."""
    unit: str = "%"
    paper_epsilon: dict[float, float] = field(default_factory=dict)
    """The epsilon that the paper states, by the value of the axis."""
    as_coded: str = ""
    """How the published code draws batches if that differs from its accounting: "fixed-blocks"."""
    notes: tuple[str, ...] = ()
    heat: bool = False
    """Whether the lines form a second axis, so that the figure is a heat map."""
    over: str = ""
    """The horizontal axis of the figure: "" for the axis of the experiment, or "epoch", "rank" or "plane"."""
    draw: str = ""
    """The diagnostic that a figure over "rank" or "plane" shows."""
    redraw_splits: bool = False
    """Whether each seed draws its own private and public records. The studies of the papers keep one split."""
    looks: dict[str, int] = field(default_factory=dict)
    """How often to record diagnostics during a run, and from how many records."""
    fast: dict[str, Any] = field(default_factory=dict)
    """The changes that make the short form of the experiment."""
    is_fast: bool = False
    """Whether this is the short form."""
    source: str = ""
    """The name or the file from which the experiment was read."""
    micro_batch: int = 1
    """The number of records whose mean gradient the published code clips. Above 1, one record can move the sum by twice
    the clip bound, so that the effective noise multiplier is half of the stated one."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Experiment:
        """Return the experiment that `dataclasses.asdict` and JSON turned into plain values."""

        def by_value(table: Mapping[str, Any]) -> dict[float, Any]:
            return {float(key): tuple(entry) if isinstance(entry, list) else entry for key, entry in table.items()}

        lines = tuple(
            ExperimentLine(**line | {"at": by_value(line["at"]), "published": by_value(line["published"])})
            for line in values["lines"]
        )
        changes = {"lines": lines, "values": tuple(values["values"]), "notes": tuple(values["notes"])}
        return cls(**{**values, **changes, "paper_epsilon": by_value(values["paper_epsilon"])})

    def measure_of(self, line: ExperimentLine) -> str:
        """Return the quantity that a line measures."""
        return line.measure or self.measure

    def spec(self, line: ExperimentLine, value: float) -> MethodSpec:
        """Return the method of a line at a value of the axis. Only the public records affect public-only."""
        if line.method == PUBLIC_ONLY and not self.varies_public_records:
            return MethodSpec(PUBLIC_ONLY)
        return line.spec(self.axis, value)

    @property
    def as_coded_words(self) -> str:
        """What the published code does that its stated epsilon does not account for.

        >>> from gnomon.studies.reproduce.experiment_files import read_experiment
        >>> read_experiment("pdp-figure3-fashion").as_coded_words
        'fixed blocks, clipped means of 5 records'
        """
        return "fixed blocks" + (f", clipped means of {self.micro_batch} records" if self.micro_batch > 1 else "")

    @property
    def runs(self) -> int:
        """The number of runs. Lines may share runs, and public-only takes one run for all values of most axes.

        >>> from gnomon.studies.reproduce.experiment_files import read_experiment
        >>> read_experiment("dp-lsgd-figure1").runs
        6
        """
        distinct = set()
        for line, value in self.chosen():
            spec = self.spec(line, value)
            distinct.add((spec.label, None if spec.is_public_only else value))
        return self.seeds * len(distinct)

    @property
    def varies_public_records(self) -> bool:
        """Whether the axis is the number of public records."""
        return current_name(self.axis) == "public_records"

    @property
    def unprotected(self) -> bool:
        """Whether the figure or the table shows values that were computed on private records without noise."""
        names = [self.draw, *(self.measure_of(line) for line in self.lines)]
        return any(name.startswith("unprotected/") for name in names)

    @property
    def looking(self) -> DiagnosticSchedule | None:
        """The diagnostics that each run records: those that are drawn or measured.

        >>> from gnomon.studies.reproduce.experiment_files import read_experiment
        >>> read_experiment("pdp-figure1").looking.keep
        ('unprotected/spectrum',)
        """
        if not self.looks:
            return None
        measures = {self.measure_of(line) for line in self.lines} - {"accuracy"}
        return DiagnosticSchedule(**self.looks, keep=(self.draw,) if self.draw else tuple(sorted(measures)))

    @property
    def base(self) -> TrainConfig:
        """The settings that all runs share."""
        return default_settings(str(self.settings.get("data", "digits"))).with_settings(self.settings)

    def shortened(self) -> Experiment:
        """Return the short form of the experiment, which takes minutes instead of hours.

        Raises:
            SettingError: the file of the experiment has no part `fast`, or this part names an unknown line.
        """
        if not self.fast:
            raise SettingError("fast", self.name, "an experiment whose file has a part `fast`")
        names = self.fast.get("lines", [line.name for line in self.lines])
        if unknown := set(names) - {line.name for line in self.lines}:
            raise SettingError("fast", sorted(unknown)[0], f"a line of the experiment {self.name}")
        return dataclasses.replace(
            self,
            settings=self.settings | self.fast.get("settings", {}),
            values=tuple(float(value) for value in self.fast.get("values", self.values)),
            seeds=int(self.fast.get("seeds", self.seeds)),
            lines=tuple(line for line in self.lines if line.name in names),
            is_fast=True,
        )

    def chosen(self, patterns: Sequence[str] = ()) -> list[tuple[ExperimentLine, float]]:
        """Return the cells whose name LINE@VALUE matches one of the patterns; all cells without patterns.

        Raises:
            SettingError: a pattern matches no cell.

        >>> from gnomon.studies.reproduce.experiment_files import read_experiment
        >>> pcdp = read_experiment("pcdp-table2")
        >>> [(line.name, value) for line, value in pcdp.chosen(["DP-SGD@6", "DP-SGD@10"])]
        [('DP-SGD', 6.0), ('DP-SGD', 10.0)]
        """
        cells = [(line, value) for line in self.lines for value in self.values]
        names = self._cell_names()
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise SettingError("cells", pattern, f"a cell such as {', '.join(names[:3])}")
        return [
            cell
            for cell, name in zip(cells, names, strict=True)
            if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
        ]

    def patterns(self, text: str) -> list[str]:
        """Split a list of patterns at its commas, although the names of lines may contain commas.

        A comma ends a pattern if every resulting pattern matches a cell. If there is no such way to split the list, a
        pattern ends at the first comma after an @.

        >>> from gnomon.studies.reproduce.experiment_files import read_experiment
        >>> read_experiment("pcdp-table2").patterns("public*,PDP-SGD, k = 100@6,DP-SGD@*")
        ['public*', 'PDP-SGD, k = 100@6', 'DP-SGD@*']
        """
        names = self._cell_names()
        parts = [part for part in text.split(",") if part.strip()]
        splits: list[list[str] | None] = [[]]  # a way to split the last n parts into patterns, if there is one
        for start in reversed(range(len(parts))):
            candidates = []
            for end in range(start + 1, len(parts) + 1):
                first, rest = ",".join(parts[start:end]).strip(), splits[len(parts) - end]
                if rest is not None and any(fnmatchcase(name, first) for name in names):
                    candidates.append([first, *rest])
            splits.append(candidates[0] if candidates else None)
        return _split_after_values(parts) if splits[-1] is None else splits[-1]

    def _cell_names(self) -> list[str]:
        return [f"{line.name}@{value:g}" for line in self.lines for value in self.values]


def _split_after_values(parts: Sequence[str]) -> list[str]:
    """Join parts into patterns that end with a part that contains @."""
    patterns, begun = [], ""
    for part in parts:
        begun = f"{begun},{part}" if begun else part
        if "@" in part:
            patterns.append(begun.strip())
            begun = ""
    return patterns + ([begun.strip()] if begun else [])
