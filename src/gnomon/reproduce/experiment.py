"""An experiment as a file describes it: lines, an axis, settings, and the published numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from gnomon.config import TrainConfig, read_yaml, recipe
from gnomon.validate import SettingError, number, whole

FOLDER = Path(__file__).parent / "experiments"
NOISE, BUDGET = "noise-multiplier", "target-epsilon"


@dataclass(frozen=True)
class Line:
    """One method with its settings: a row of a table, a line of a figure.

    >>> Line("DP-SGD", "dp-sgd", at={18.0: {"lr": 0.05}}).label("noise-multiplier", 18.0)
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

        >>> Line("x", "pcdp", {"scope": "per-tensor"}).label("rank", 50)
        'pcdp:scope=per-tensor,rank=50'
        """
        own = self.settings | self.at.get(value, {})
        if axis not in (NOISE, BUDGET):
            own = own | {axis: value}
        text = ",".join(f"{key}={one:g}" if isinstance(one, float) else f"{key}={one}" for key, one in own.items())
        return f"{self.method}:{text}" if text else self.method


@dataclass(frozen=True)
class Experiment:
    """One table or figure of a paper.

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
    lines: tuple[Line, ...]
    measure: str = "accuracy"
    unit: str = "%"
    paper_epsilon: dict[float, float] = field(default_factory=dict)
    as_coded: str = ""
    """How the published code drew batches, if not as accounted: "fixed-blocks"."""
    notes: tuple[str, ...] = ()
    heat: bool = False
    """Whether lines are a second axis, drawn as a map."""
    fast: dict[str, Any] = field(default_factory=dict)
    is_fast: bool = False
    source: str = ""
    """What `gnomon reproduce` was asked for: the name, or the file."""

    def measure_of(self, line: Line) -> str:
        """What a line measures: `accuracy`, or the name of a metric whose last value counts."""
        return line.measure or self.measure

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

    def chosen(self, patterns: list[str]) -> list[tuple[Line, float]]:
        """The cells whose name, LINE@VALUE, matches one of the patterns; all without patterns.

        >>> pcdp = read_experiment("pcdp-table2")
        >>> [(line.name, value) for line, value in pcdp.chosen(["DP-SGD@6", "DP-SGD@10"])]
        [('DP-SGD', 6.0), ('DP-SGD', 10.0)]
        """
        every = [(line, value) for line in self.lines for value in self.values]
        if not patterns:
            return every
        names = {(line.name, value): f"{line.name}@{value:g}" for line, value in every}
        found = [one for one in every if any(fnmatchcase(names[one[0].name, one[1]], p) for p in patterns)]
        if not found:
            raise SettingError("cells", ",".join(patterns), f"names such as {', '.join(list(names.values())[:3])}")
        return found


def available() -> list[str]:
    """The names of the experiments that come with the package.

    >>> "pcdp-table2" in available()
    True
    """
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read_experiment(name: str) -> Experiment:
    """An experiment by its name, or from a YAML file of one's own.

    >>> read_experiment("pcdp-table2").lines[0].published[6.0]
    (91.91, 0.56)
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"
    if path.parent == FOLDER and path.stem not in available():
        raise SettingError("experiment", name, f"one of {', '.join(available())}, or a YAML file")
    values = read_yaml(path)
    try:
        return dataclasses.replace(_experiment(path.stem, values), source=name)
    except KeyError as error:
        raise SettingError("experiment", str(path), f"a file with the key {error}") from None


def restored(values: Mapping[str, Any]) -> Experiment:
    """The experiment that `dataclasses.asdict` and JSON turned into plain values."""

    def keyed(table: Mapping[str, Any]) -> dict[float, Any]:
        return {float(key): tuple(value) if isinstance(value, list) else value for key, value in table.items()}

    lines = [Line(**one | {"at": keyed(one["at"]), "published": keyed(one["published"])}) for one in values["lines"]]
    changed = {"lines": tuple(lines), "values": tuple(values["values"]), "notes": tuple(values["notes"])}
    return Experiment(**{**values, **changed, "paper_epsilon": keyed(values["paper_epsilon"])})


def _experiment(name: str, values: dict[str, Any]) -> Experiment:
    known = {"title", "paper", "settings", "axis", "values", "seeds", "lines", "family", "measure", "unit",
             "paper-epsilon", "as-coded", "notes", "fast"}  # fmt: skip
    if unknown := set(values) - known:
        raise SettingError("experiment", f"{name}: {sorted(unknown)[0]}", f"one of {', '.join(sorted(known))}")
    as_coded = values.get("as-coded", "")
    if as_coded not in ("", "fixed-blocks"):
        raise SettingError("as-coded", as_coded, "fixed-blocks, or nothing")
    lines = [_line(one, about) for one, about in values.get("lines", {}).items()]
    if "family" in values:
        lines += _family(values["family"])
    if not lines:
        raise SettingError("experiment", name, "a file with lines or a family")
    return Experiment(
        name,
        values["title"],
        values["paper"],
        values["settings"],
        values["axis"],
        tuple(number("values", value) for value in values["values"]),
        whole("seeds", values["seeds"]),
        tuple(lines),
        values.get("measure", "accuracy"),
        values.get("unit", "%"),
        {float(key): float(value) for key, value in values.get("paper-epsilon", {}).items()},
        as_coded,
        tuple(values.get("notes", ())),
        "family" in values,
        values.get("fast", {}),
    )


def _line(name: str, about: Mapping[str, Any]) -> Line:
    known = {"method", "settings", "at", "published", "measure"}
    if unknown := set(about) - known:
        raise SettingError("lines", f"{name}: {sorted(unknown)[0]}", f"one of {', '.join(sorted(known))}")
    published = {}
    for key, value in about.get("published", {}).items():
        pair = value if isinstance(value, list) else [value, None]
        published[float(key)] = (float(pair[0]), None if pair[1] is None else float(pair[1]))
    at = {float(key): dict(value) for key, value in about.get("at", {}).items()}
    return Line(name, about["method"], dict(about.get("settings", {})), at, published, about.get("measure", ""))


def _family(about: Mapping[str, Any]) -> list[Line]:
    """A line for each value of a second setting."""
    setting = about["setting"]
    return [
        Line(f"{setting} = {value:g}", about["method"], {**about.get("settings", {}), setting: value})
        for value in about["values"]
    ]
