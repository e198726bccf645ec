"""YAML files of experiments: reading and validating them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gnomon.errors import SettingError
from gnomon.runs.config import read_yaml
from gnomon.studies.reproduce.experiment import Experiment, ExperimentLine
from gnomon.validate import number, whole

FOLDER = Path(__file__).parent / "experiments"
KEYS = ("title", "paper", "settings", "axis", "values", "seeds", "lines", "family", "measure", "unit", "paper-epsilon",
        "as-coded", "micro-batch", "notes", "over", "draw", "looks", "redraw-splits", "fast")  # fmt: skip
LINE_KEYS = ("method", "settings", "at", "published", "measure")
FAST_KEYS = ("values", "lines", "seeds", "settings")
FAMILY_KEYS = ("setting", "values", "method", "settings")
OVER = ("", "epoch", "rank", "plane")

ELSEWHERE = {
    "federated": (
        "PCDP-SGD Table 2 and Figure 4, FedFDP tables: federated methods",
        "python experiments/federated.py",
    ),
    "compressed": (
        "Convergence rates of the compressed methods, for which no numbers were published",
        "python experiments/compressed.py",
    ),
    "local-steps": (
        "DP-LSGD: step size and clip bound tuned for each number of local steps K",
        "python experiments/local_steps.py",
    ),
}
"""Studies that have a script of their own in the repository: their description and the command that runs them."""


def available() -> list[str]:
    """Return the names of the experiments that come with the package.

    >>> "pcdp-table2" in available()
    True
    """
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read_experiment(name: str) -> Experiment:
    """Read an experiment that comes with the package, or one from a YAML file.

    Args:
        name: a name of `available()`, or the path of a YAML file.

    Raises:
        SettingError: the experiment does not exist, or its file is invalid.

    >>> read_experiment("pcdp-table2").lines[0].published[6.0]
    (91.91, 0.56)
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"
    if path.parent == FOLDER and path.stem not in available():
        raise SettingError("experiment", name, f"one of {', '.join(available())}, or a YAML file")
    values = _read_values(path)
    try:
        return dataclasses.replace(_experiment(path.stem, values), source=name)
    except KeyError as error:
        raise SettingError("experiment", str(path), f"a file with the key {error}") from None


def _read_values(path: Path) -> dict[str, Any]:
    """Read a file. If it has the key `like`, merge it into the experiment that this key names.

    The settings of both files are merged; all other keys replace those of the named experiment. If the file has its own
    values of the axis, numbers at other values are left out.
    """
    values = read_yaml(path)
    if "like" not in values:
        return values
    parent = str(values.pop("like"))
    if parent not in available():
        raise SettingError("like", parent, f"one of {', '.join(available())}")
    inherited = _read_values(FOLDER / f"{parent}.yaml")
    names = values.pop("keep", None)
    lines = {name: line for name, line in inherited.get("lines", {}).items() if names is None or name in names}
    if names is not None and len(lines) < len(names):
        raise SettingError("keep", next(name for name in names if name not in lines), f"lines of {parent}")
    settings = inherited["settings"] | values.get("settings", {})
    merged = inherited | {"lines": lines} | values | {"settings": settings}
    return restrict_to_values(merged) if "values" in values else merged


def restrict_to_values(experiment: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a file without the settings and numbers at values that its axis does not have."""

    def restrict(table: Mapping[Any, Any]) -> dict[Any, Any]:
        return {key: entry for key, entry in table.items() if key in experiment["values"]}

    lines = {
        name: line | {part: restrict(line[part]) for part in ("at", "published") if part in line}
        for name, line in experiment["lines"].items()
    }
    return experiment | {"lines": lines, "paper-epsilon": restrict(experiment.get("paper-epsilon", {}))}


def _experiment(name: str, values: dict[str, Any]) -> Experiment:
    if unknown := set(values) - set(KEYS):
        raise SettingError("experiment", f"{name}: {sorted(unknown)[0]}", f"one of {', '.join(sorted(KEYS))}")
    values = _checked(values)
    as_coded = values.get("as-coded", "")
    if as_coded not in ("", "fixed-blocks"):
        raise SettingError("as-coded", as_coded, "fixed-blocks, or no such key")
    micro_batch = whole("micro-batch", values.get("micro-batch", 1))
    if micro_batch > 1 and not as_coded:
        raise SettingError.with_message(f"micro-batch = {micro_batch} needs the key as-coded: fixed-blocks")
    over = values.get("over", "")
    if over not in OVER:
        raise SettingError("over", over, f"one of {', '.join(OVER[1:])}, or no such key")
    if (over in ("rank", "plane")) != ("draw" in values) or ("draw" in values and not values.get("looks")):
        raise SettingError(
            "draw", values.get("draw"), "the name of a diagnostic, together with looks and with over: rank or plane"
        )
    lines = [_line(line, about) for line, about in values.get("lines", {}).items()]
    if "family" in values:
        lines += _family(values["family"])
    if not lines:
        raise SettingError("experiment", name, "a file with lines or a family")
    return Experiment(
        name=name,
        title=values["title"],
        paper=values["paper"],
        settings=values["settings"],
        axis=values["axis"],
        values=tuple(number("values", value) for value in values["values"]),
        seeds=whole("seeds", values["seeds"]),
        lines=tuple(lines),
        measure=values.get("measure", "accuracy"),
        unit=values.get("unit", "%"),
        paper_epsilon={float(key): float(value) for key, value in values.get("paper-epsilon", {}).items()},
        as_coded=as_coded,
        notes=tuple(values.get("notes", ())),
        heat="family" in values,
        over=over,
        draw=values.get("draw", ""),
        redraw_splits=bool(values.get("redraw-splits", False)),
        looks=values.get("looks", {}),
        fast=values.get("fast", {}),
        micro_batch=micro_batch,
    )


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a file, with notes as a list, after checking the types of its parts."""
    types = {"title": (str, "a text"), "paper": (str, "a text"), "settings": (dict, "a mapping"),
             "values": (list, "a list of numbers")}  # fmt: skip
    for key, (expected_type, words) in types.items():
        if not isinstance(values[key], expected_type) or not values[key]:
            raise SettingError(key, values[key], words)
    for key in ("lines", "family", "looks", "fast", "paper-epsilon"):
        if not isinstance(values.get(key, {}), dict):
            raise SettingError(key, values[key], "a mapping")
    if "seed" in values["settings"]:
        raise SettingError.with_message("settings cannot contain seed: set the number of seeds with the key `seeds`")
    for name, keys in (("fast", FAST_KEYS), ("family", FAMILY_KEYS)):
        if unknown := set(values.get(name, {})) - set(keys):
            raise SettingError(name, sorted(map(str, unknown))[0], f"one of {', '.join(keys)}")
    _refuse_unknown_axis_values(values)
    notes = values.get("notes", [])
    if not isinstance(notes, str) and not (isinstance(notes, list) and all(isinstance(note, str) for note in notes)):
        raise SettingError("notes", notes, "a list of texts")
    return values | {"notes": [notes] if isinstance(notes, str) else notes}


def _refuse_unknown_axis_values(values: Mapping[str, Any]) -> None:
    """Raise an error for settings or numbers at a value that the axis does not have: they would be ignored silently."""
    axis = [number("values", value) for value in values["values"]]
    if len(set(axis)) < len(axis):
        raise SettingError("values", values["values"], "each value once")
    tables = {"paper-epsilon": values.get("paper-epsilon", {})}
    for name, line in values.get("lines", {}).items():
        if not isinstance(name, str) or not isinstance(line, dict):
            raise SettingError("lines", name, "a name in quotation marks, and a mapping with its method")
        tables |= {f"{name}: {part}": line.get(part, {}) for part in ("at", "published")}
    for name, table in tables.items():
        if unknown := [key for key in table if number(name, key) not in axis]:
            raise SettingError(name, unknown[0], f"one of the values {', '.join(f'{value:g}' for value in axis)}")


def _line(name: str, about: Mapping[str, Any]) -> ExperimentLine:
    if unknown := set(about) - set(LINE_KEYS):
        raise SettingError("lines", f"{name}: {sorted(unknown)[0]}", f"one of {', '.join(sorted(LINE_KEYS))}")
    published = {}
    for value, result in about.get("published", {}).items():
        mean, deviation = result if isinstance(result, list) else (result, None)
        published[float(value)] = (float(mean), None if deviation is None else float(deviation))
    return ExperimentLine(
        name,
        about["method"],
        dict(about.get("settings", {})),
        {float(value): dict(settings) for value, settings in about.get("at", {}).items()},
        published,
        about.get("measure", ""),
    )


def _family(about: Mapping[str, Any]) -> list[ExperimentLine]:
    """Return a line for each value of a second setting."""
    setting = about["setting"]
    return [
        ExperimentLine(f"{setting} = {value:g}", about["method"], {**about.get("settings", {}), setting: value})
        for value in about["values"]
    ]
