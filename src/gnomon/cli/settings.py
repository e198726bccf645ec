"""Flags for the settings of a run in groups, and the settings that a YAML file and flags give together."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from gnomon.runs.config import DATA_DEFAULTS, FAIR, Config, TrainConfig, read_yaml
from gnomon.runs.setting_names import dashed

Settings = TypeVar("Settings", bound=Config)
FlagGroups = dict[str, argparse._ArgumentGroup]

INTERRUPTED = 130
"""Exit code of a run that Ctrl-C stopped."""

EVERYDAY = (
    "data", "model", "method", "target_epsilon", "target_delta", "clients", "rounds", "epochs", "batch_size", "lr",
    "max_grad_norm",
)  # fmt: skip
"""Settings that `--help` lists first."""

TITLES = {
    "everyday": "everyday settings",
    "federation": "federation",
    "privacy": "noise and sampling",
    "data": "data",
    "training": "optimisation",
    "run": "run and output",
    "ledger": "privacy ledger",
}
"""Groups of flags in the order in which `--help` lists them; groups of method-specific settings follow."""


def add_flag_groups(parser: argparse.ArgumentParser) -> FlagGroups:
    """Add the groups of `TITLES` to a parser. Groups without flags do not show in `--help`."""
    return {name: parser.add_argument_group(title) for name, title in TITLES.items()}


def add_settings(
    parser: argparse.ArgumentParser,
    groups: FlagGroups,
    leave_out: frozenset[str] = frozenset(),
    config: type[Config] = TrainConfig,
) -> None:
    """Add a flag for each setting of a run.

    Args:
        parser: the parser of the command.
        groups: the groups of flags that the parser has; groups of method-specific settings are added.
        leave_out: settings that the command does not have.
        config: the dataclass of the settings.
    """
    shown = {field.name: field for field in dataclasses.fields(config) if field.name not in leave_out}
    selectable = config.__dataclass_fields__["method"].metadata["choices"]
    methods = {name: _selectable(field.metadata["methods"], selectable) for name, field in shown.items()}
    hints = get_type_hints(config)
    for name in [name for name in EVERYDAY if name in shown]:
        _add_setting(groups["everyday"], shown.pop(name), hints[name], "")
    for name, field in shown.items():
        group = field.metadata["group"]
        members = [other for other in shown if shown[other].metadata["group"] == group]
        group_methods = list(dict.fromkeys(method for member in members for method in methods[member]))
        if group not in groups:
            title = f"{group} (settings of {', '.join(group_methods)})" if group_methods else group
            groups[group] = parser.add_argument_group(title)
        named_by_title = group not in TITLES and set(methods[name]) == set(group_methods)
        users = "" if named_by_title or not methods[name] else f" [{', '.join(methods[name])}]"
        _add_setting(groups[group], field, hints[name], users)


def _selectable(methods: Sequence[str], choices: Sequence[str]) -> list[str]:
    """Return the methods among the choices of `--method`; all methods if it has no list of choices."""
    return [method for method in methods if not choices or method in choices]


def _add_setting(group: argparse._ArgumentGroup, field: dataclasses.Field[Any], hint: Any, users: str) -> None:
    """Add the flag of one setting; `users` ends its help text and names the methods that use it."""
    kinds = get_args(hint) or (hint,)
    kind = float if float in kinds else int if int in kinds else str
    choices = field.metadata["choices"]
    group.add_argument(
        f"--{dashed(field.name)}",
        type=_clip_rule if field.name == "clip" else kind,
        choices=choices or None,
        metavar=None if choices else {float: "X", int: "N", str: "NAME"}[kind],
        default=argparse.SUPPRESS,
        help=_help(field) + users,
    )


def _help(field: dataclasses.Field[Any]) -> str:
    text: str = field.metadata["help"].replace("%", "%%")
    if field.default is None or "default" in text:
        return text
    differs = any(field.name in defaults for defaults in DATA_DEFAULTS.values())
    return f"{text} (default: {field.default}{'; differs for some data sets' if differs else ''})"


def _clip_rule(text: str) -> str:
    if text == "fair":
        raise argparse.ArgumentTypeError(FAIR)
    return text


def add_run_flags(group: argparse._ArgumentGroup, *, overwrite: str = "") -> None:
    """Add the flags that all commands with settings share; `overwrite` is the help text of `--overwrite`, if any."""
    group.add_argument("--config", type=Path, metavar="FILE", help="YAML file of settings; flags take precedence")
    if overwrite:
        group.add_argument("--overwrite", action="store_true", help=overwrite)
    group.add_argument("--quiet", action="store_true", help="show no progress bar")


def settings_of(args: argparse.Namespace, defaults: Callable[[str, str], Settings]) -> Settings:
    """Return the settings of a command: the defaults, replaced by those of the YAML file, replaced by the flags.

    Args:
        args: the parsed command line.
        defaults: returns the default settings of a data set and a method.
    """
    names = {field.name for field in dataclasses.fields(defaults("digits", ""))}
    flags = {name: value for name, value in vars(args).items() if name in names}
    file = read_yaml(args.config) if args.config is not None else {}
    data = flags.get("data", file.get("data", TrainConfig().data))
    method = flags.get("method", file.get("method", TrainConfig().method))
    return defaults(str(data), str(method)).with_settings(file).with_settings(flags)
