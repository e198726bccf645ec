"""Experiments as files: reading them, and saying what is wrong in one."""

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
FAST, FAMILY = ("values", "lines", "seeds", "settings"), ("setting", "values", "method", "settings")
OVER = ("", "epoch", "rank", "plane")

ELSEWHERE = {
    "federated": ("PCDP-SGD Table 2 and Figure 4, FedFDP tables: federated methods", "python experiments/federated.py"),
    "compressed": (
        "Rates of the compressed family, which has no published numbers",
        "python experiments/compressed.py",
    ),
    "local-steps": ("DP-LSGD: step size and bound searched for each K", "python experiments/local_steps.py"),
}
"""Studies with a runner of their own in the repository: what they are, and the command."""


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
    values = _values(path)
    try:
        return dataclasses.replace(_experiment(path.stem, values), source=name)
    except KeyError as error:
        raise SettingError("experiment", str(path), f"a file with the key {error}") from None


def _values(path: Path) -> dict[str, Any]:
    """What a file says. With `like` it says how it differs from another one: settings are added, all else replaced.

    Numbers of the other file at values that this one does not have are left out.
    """
    own = read_yaml(path)
    if "like" not in own:
        return own
    other = str(own.pop("like"))
    if other not in available():
        raise SettingError("like", other, f"one of {', '.join(available())}")
    base = _values(FOLDER / f"{other}.yaml")
    kept = own.pop("keep", None)
    lines = {name: line for name, line in base.get("lines", {}).items() if kept is None or name in kept}
    if kept is not None and len(lines) < len(kept):
        raise SettingError("keep", next(name for name in kept if name not in lines), f"lines of {other}")
    values = base | {"lines": lines} | own | {"settings": base["settings"] | own.get("settings", {})}
    return _cut(values) if "values" in own else values


def _cut(values: dict[str, Any]) -> dict[str, Any]:
    """Nothing about values of the axis that are not among `values`."""

    def kept(table: Mapping[Any, Any]) -> dict[Any, Any]:
        return {key: one for key, one in table.items() if key in values["values"]}

    lines = {
        name: line | {part: kept(line[part]) for part in ("at", "published") if part in line}
        for name, line in values["lines"].items()
    }
    return values | {"lines": lines, "paper-epsilon": kept(values.get("paper-epsilon", {}))}


def _experiment(name: str, values: dict[str, Any]) -> Experiment:
    known = {"title", "paper", "settings", "axis", "values", "seeds", "lines", "family", "measure", "unit",
             "paper-epsilon", "as-coded", "micro-batch", "notes", "over", "draw", "looks", "fast"}  # fmt: skip
    if unknown := set(values) - known:
        raise SettingError("experiment", f"{name}: {sorted(unknown)[0]}", f"one of {', '.join(sorted(known))}")
    values = _checked(values)
    as_coded = values.get("as-coded", "")
    if as_coded not in ("", "fixed-blocks"):
        raise SettingError("as-coded", as_coded, "fixed-blocks, or nothing")
    micro = whole("micro-batch", values.get("micro-batch", 1))
    if micro > 1 and not as_coded:
        raise SettingError("micro-batch", micro, "as-coded as well")
    over = values.get("over", "")
    if over not in OVER:
        raise SettingError("over", over, f"one of {', '.join(OVER[1:])}, or nothing")
    if (over in ("rank", "plane")) != ("draw" in values) or ("draw" in values and not values.get("looks")):
        raise SettingError("draw", values.get("draw"), "a diagnostic to draw over rank or plane, with looks")
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
        over,
        values.get("draw", ""),
        values.get("looks", {}),
        values.get("fast", {}),
        micro_batch=micro,
    )


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a file, if its parts have the shapes that they should have; notes as a list."""
    kinds = {"title": (str, "a text"), "paper": (str, "a text"), "settings": (dict, "a mapping"),
             "values": (list, "a list of numbers")}  # fmt: skip
    for key, (kind, word) in kinds.items():
        if not isinstance(values[key], kind) or not values[key]:
            raise SettingError(key, values[key], word)
    for key in ("lines", "family", "looks", "fast", "paper-epsilon"):
        if not isinstance(values.get(key, {}), dict):
            raise SettingError(key, values[key], "a mapping")
    if "seed" in values["settings"]:
        raise SettingError("settings", "seed", "`seeds`, how many there are: they count from 0")
    for name, keys in (("fast", FAST), ("family", FAMILY)):
        if unknown := set(values.get(name, {})) - set(keys):
            raise SettingError(name, sorted(map(str, unknown))[0], f"one of {', '.join(keys)}")
    _refuse_strays(values)
    notes = values.get("notes", [])
    if not isinstance(notes, str) and not (isinstance(notes, list) and all(isinstance(one, str) for one in notes)):
        raise SettingError("notes", notes, "a list of texts")
    return values | {"notes": [notes] if isinstance(notes, str) else notes}


def _refuse_strays(values: Mapping[str, Any]) -> None:
    """Settings and numbers at values that the axis does not have would be lost without a word."""
    axis = [number("values", one) for one in values["values"]]
    if len(set(axis)) < len(axis):
        raise SettingError("values", values["values"], "each value once")
    tables = {"paper-epsilon": values.get("paper-epsilon", {})}
    for line, about in values.get("lines", {}).items():
        if not isinstance(line, str) or not isinstance(about, dict):
            raise SettingError("lines", line, "a name in quotation marks, and a mapping with its method")
        tables |= {f"{line}: {part}": about.get(part, {}) for part in ("at", "published")}
    for where, table in tables.items():
        if stray := [key for key in table if number(where, key) not in axis]:
            raise SettingError(where, stray[0], f"one of the values: {', '.join(f'{one:g}' for one in axis)}")


def _line(name: str, about: Mapping[str, Any]) -> ExperimentLine:
    known = {"method", "settings", "at", "published", "measure"}
    if unknown := set(about) - known:
        raise SettingError("lines", f"{name}: {sorted(unknown)[0]}", f"one of {', '.join(sorted(known))}")
    published = {}
    for key, value in about.get("published", {}).items():
        pair = value if isinstance(value, list) else [value, None]
        published[float(key)] = (float(pair[0]), None if pair[1] is None else float(pair[1]))
    at = {float(key): dict(value) for key, value in about.get("at", {}).items()}
    return ExperimentLine(
        name, about["method"], dict(about.get("settings", {})), at, published, about.get("measure", "")
    )


def _family(about: Mapping[str, Any]) -> list[ExperimentLine]:
    """A line for each value of a second setting."""
    setting = about["setting"]
    return [
        ExperimentLine(f"{setting} = {value:g}", about["method"], {**about.get("settings", {}), setting: value})
        for value in about["values"]
    ]
