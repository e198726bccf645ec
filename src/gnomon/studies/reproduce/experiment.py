"""An experiment as a file describes it: lines, an axis, settings, and the published numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from gnomon.diagnose import Looks
from gnomon.errors import SettingError
from gnomon.runs.config import TrainConfig, as_text, recipe
from gnomon.runs.setting_names import current_name

NOISE, BUDGET = "noise-multiplier", "target-epsilon"


@dataclass(frozen=True)
class ExperimentLine:
    """One method with its settings: a row of a table, a line of a figure.

    >>> ExperimentLine("DP-SGD", "dp-sgd", at={18.0: {"lr": 0.05}}).label("noise-multiplier", 18.0)
    'dp-sgd:lr=0.05'
    """

    name: str
    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    at: dict[float, dict[str, Any]] = field(default_factory=dict)
    """Settings that hold at one value of the axis only."""
    published: dict[float, tuple[float, float | None]] = field(default_factory=dict)
    """Mean and standard deviation by value of the axis."""
    measure: str = ""
    """What is measured, where it is not what the experiment measures."""

    def label(self, axis: str, value: float) -> str:
        """What `gnomon compare` would call this line at a value: the method with its own settings.

        >>> ExperimentLine("x", "pcdp", {"subspace-scope": "per-tensor"}).label("rank", 50)
        'pcdp:subspace-scope=per-tensor,rank=50'
        """
        own = self.settings | self.at.get(value, {})
        if axis not in (NOISE, BUDGET):
            own = own | {axis: value}
        text = ",".join(f"{key}={as_text(one)}" for key, one in own.items())
        return f"{self.method}:{text}" if text else self.method


@dataclass(frozen=True)
class Experiment:
    """One table or figure of a paper.

    >>> from gnomon.studies.reproduce.files import read_experiment
    >>> figure = read_experiment("pcdp-appendix-figure2")
    >>> figure.axis, figure.values[:2], figure.base.noise_multiplier
    ('rank', (10.0, 25.0), 22.0)
    """

    name: str
    title: str
    paper: str
    settings: dict[str, Any]
    axis: str
    values: tuple[float, ...]
    seeds: int
    lines: tuple[ExperimentLine, ...]
    measure: str = "accuracy"
    unit: str = "%"
    paper_epsilon: dict[float, float] = field(default_factory=dict)
    as_coded: str = ""
    """How the published code drew batches, if not as accounted: "fixed-blocks"."""
    notes: tuple[str, ...] = ()
    heat: bool = False
    """Whether lines are a second axis, drawn as a map."""
    over: str = ""
    """What the picture is drawn against: "" for the axis, or "epoch", "rank" or "plane"."""
    draw: str = ""
    """The diagnostic that the picture shows against ranks or in a plane."""
    looks: dict[str, int] = field(default_factory=dict)
    """How often and at how much to look inside runs."""
    fast: dict[str, Any] = field(default_factory=dict)
    is_fast: bool = False
    source: str = ""
    """What `gnomon reproduce` was asked for: the name, or the file."""
    micro_batch: int = 1
    """How many records the published code clips together, as their mean; above 1 its noise is half of what it says."""

    def measure_of(self, line: ExperimentLine) -> str:
        """What a line measures: `accuracy`, or the name of a metric whose last value counts."""
        return line.measure or self.measure

    @property
    def as_coded_words(self) -> str:
        """What the published code does that its epsilon leaves out.

        >>> from gnomon.studies.reproduce.files import read_experiment
        >>> read_experiment("pdp-figure3-fashion").as_coded_words
        'fixed blocks, means of 5 clipped'
        """
        return "fixed blocks" + (f", means of {self.micro_batch} clipped" if self.micro_batch > 1 else "")

    @property
    def runs(self) -> int:
        """How many runs it takes; lines may share them, and public records alone need one whatever the axis.

        >>> from gnomon.studies.reproduce.files import read_experiment
        >>> read_experiment("dp-lsgd-figure1").runs
        6
        """
        whatever = not self.varies_public_records
        labels = {
            "public-only" if line.method == "public-only" and whatever else (line.label(self.axis, value), value)
            for line, value in self.chosen()
        }
        return self.seeds * len(labels)

    @property
    def varies_public_records(self) -> bool:
        """Whether the axis is the number of public records."""
        return current_name(self.axis) == "public_records"

    @property
    def unprotected(self) -> bool:
        """Whether picture or table show what was computed on private records without noise."""
        names = [self.draw, *(self.measure_of(line) for line in self.lines)]
        return any(name.startswith("unprotected/") for name in names)

    @property
    def looking(self) -> Looks | None:
        """The looks inside each run, keeping what is drawn or measured.

        >>> from gnomon.studies.reproduce.files import read_experiment
        >>> read_experiment("pdp-figure1").looking.keep
        ('unprotected/spectrum',)
        """
        if not self.looks:
            return None
        measures = (self.measure_of(line) for line in self.lines)
        keep = (self.draw,) if self.draw else tuple(sorted({one for one in measures if one != "accuracy"}))
        return Looks(**self.looks, keep=keep)

    @property
    def base(self) -> TrainConfig:
        """The settings that all cells share."""
        return recipe(str(self.settings.get("data", "digits"))).with_settings(self.settings)

    def shortened(self) -> Experiment:
        """The form that answers in minutes, if the file gives one."""
        if not self.fast:
            raise SettingError("fast", self.name, "an experiment whose file has a part `fast`")
        kept = self.fast.get("lines", [line.name for line in self.lines])
        if unknown := set(kept) - {line.name for line in self.lines}:
            raise SettingError("fast", sorted(unknown)[0], f"lines of the experiment {self.name}")
        return dataclasses.replace(
            self,
            settings=self.settings | self.fast.get("settings", {}),
            values=tuple(float(value) for value in self.fast.get("values", self.values)),
            seeds=int(self.fast.get("seeds", self.seeds)),
            lines=tuple(line for line in self.lines if line.name in kept),
            is_fast=True,
        )

    def chosen(self, patterns: Sequence[str] = ()) -> list[tuple[ExperimentLine, float]]:
        """The cells whose name, LINE@VALUE, matches one of the patterns; all without patterns.

        >>> from gnomon.studies.reproduce.files import read_experiment
        >>> pcdp = read_experiment("pcdp-table2")
        >>> [(line.name, value) for line, value in pcdp.chosen(["DP-SGD@6", "DP-SGD@10"])]
        [('DP-SGD', 6.0), ('DP-SGD', 10.0)]
        """
        every = [(line, value) for line in self.lines for value in self.values]
        names = [self._name(line, value) for line, value in every]
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise SettingError("cells", pattern, f"names such as {', '.join(names[:3])}")
        return [
            one
            for one, name in zip(every, names, strict=True)
            if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
        ]

    def patterns(self, text: str) -> list[str]:
        """Patterns in a list, where names of lines may have commas of their own.

        A comma ends a pattern if all patterns then match something. Where no reading does that, it ends one after @.

        >>> from gnomon.studies.reproduce.files import read_experiment
        >>> read_experiment("pcdp-table2").patterns("public*,PDP-SGD, k = 100@6,DP-SGD@*")
        ['public*', 'PDP-SGD, k = 100@6', 'DP-SGD@*']
        """
        names = [self._name(line, value) for line in self.lines for value in self.values]
        parts = [part for part in text.split(",") if part.strip()]
        read: list[list[str] | None] = [[]]  # how to read the last n parts, if there is a way
        for start in reversed(range(len(parts))):
            ways = []
            for end in range(start + 1, len(parts) + 1):
                first, rest = ",".join(parts[start:end]).strip(), read[len(parts) - end]
                if rest is not None and any(fnmatchcase(name, first) for name in names):
                    ways.append([first, *rest])
            read.append(ways[0] if ways else None)
        return _after_values(parts) if read[-1] is None else read[-1]

    @staticmethod
    def _name(line: ExperimentLine, value: float) -> str:
        return f"{line.name}@{value:g}"


def _after_values(parts: Sequence[str]) -> list[str]:
    """Patterns that end where a part has a value."""
    found, begun = [], ""
    for part in parts:
        begun = f"{begun},{part}" if begun else part
        if "@" in part:
            found.append(begun.strip())
            begun = ""
    return found + ([begun.strip()] if begun else [])


def restored(values: Mapping[str, Any]) -> Experiment:
    """The experiment that `dataclasses.asdict` and JSON turned into plain values."""

    def keyed(table: Mapping[str, Any]) -> dict[float, Any]:
        return {float(key): tuple(value) if isinstance(value, list) else value for key, value in table.items()}

    lines = [
        ExperimentLine(**one | {"at": keyed(one["at"]), "published": keyed(one["published"])})
        for one in values["lines"]
    ]
    changed = {"lines": tuple(lines), "values": tuple(values["values"]), "notes": tuple(values["notes"])}
    return Experiment(**{**values, **changed, "paper_epsilon": keyed(values["paper_epsilon"])})
