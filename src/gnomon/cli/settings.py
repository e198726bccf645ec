"""Flags for the settings of a run, and the settings that flags and a file give."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from typing import TypeVar, get_args, get_type_hints

from gnomon.runs.config import FAIR, RECIPES, Config, TrainConfig, read_yaml

Settings = TypeVar("Settings", bound=Config)

INTERRUPTED = 130
"""The exit code of a run that Ctrl-C stopped."""


def add_settings(
    parser: argparse.ArgumentParser, leave_out: frozenset[str] = frozenset(), config: type[Config] = TrainConfig
) -> None:
    """A flag for each setting of a run."""
    shown_fields = [field for field in dataclasses.fields(config) if field.name not in leave_out]
    names = dict.fromkeys(field.metadata["group"] for field in shown_fields)
    groups = {name: parser.add_argument_group(name) for name in names}
    hints = get_type_hints(config)
    for field in shown_fields:
        kinds = get_args(hints[field.name]) or (hints[field.name],)
        kind = float if float in kinds else int if int in kinds else str
        text = field.metadata["help"].replace("%", "%%")
        differs = any(field.name in one for one in RECIPES.values())
        shown = f" (default: {field.default}{', other for some data sets' if differs else ''})"
        shown = "" if field.default is None or "default" in text else shown
        groups[field.metadata["group"]].add_argument(
            f"--{field.name.replace('_', '-')}",
            type=_clip_rule if field.name == "clip" else kind,
            choices=field.metadata["choices"] or None,
            metavar=None if field.metadata["choices"] else {float: "X", int: "N", str: "NAME"}[kind],
            default=argparse.SUPPRESS,
            help=text + shown,
        )


def _clip_rule(text: str) -> str:
    if text == "fair":
        raise argparse.ArgumentTypeError(FAIR)
    return text


def settings_of(args: argparse.Namespace, defaults: Callable[[str, str], Settings]) -> Settings:
    """Defaults of the data set, then the file, then flags."""
    names = {field.name for field in dataclasses.fields(defaults("digits", ""))}
    flags = {name: value for name, value in vars(args).items() if name in names}
    file = read_yaml(args.config) if args.config is not None else {}
    data = flags.get("data", file.get("data", TrainConfig().data))
    method = flags.get("method", file.get("method", TrainConfig().method))
    return defaults(str(data), str(method)).with_settings(file).with_settings(flags)
