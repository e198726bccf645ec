"""The command `gnomon compare`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnomon.cli.settings import add_flag_groups, add_run_flags, add_settings, settings_of
from gnomon.errors import SettingError
from gnomon.runs.config import default_settings

if TYPE_CHECKING:
    from gnomon.studies.compare import Comparison

VARIED = frozenset({"method", "noise_multiplier", "target_epsilon", "seed", "insecure_noise_seed"})
"""Settings that a comparison sets for each of its runs."""


def add_command(commands: Any) -> None:
    """Add the command to the parser of all commands."""
    parser = commands.add_parser(
        "compare",
        usage="gnomon compare [flags]",
        help="compare methods over noise levels and seeds",
        description="Run methods x noise levels x seeds on one split of the data. Finished runs are kept in the "
        "folder: start the command again to continue. The line public-only shows what the public records achieve "
        "alone, at epsilon 0; for npz files it needs the arrays x_public and y_public. A setting that only some "
        "methods have reaches those methods; common settings of local steps reach dp-lsgd only, and other methods "
        "take them by name: pcdp:local-steps=3.",
        epilog="examples:\n"
        "  gnomon compare --data digits --methods dp-sgd,pdp,pcdp,rpdp,rsdp,public-only\n"
        "  gnomon compare --data digits --target-epsilons 1,3 --methods dp-sgd,pcdp\n"
        "  gnomon compare --data mnist --private-records 10000 --public-records 100 --noise-multipliers 6,10,22 \\\n"
        "      --epochs 80 --batch-size 250 --max-grad-norm 0.01 --lr 5 \\\n"
        "      --methods dp-sgd,pcdp,pcdp:subspace-scope=per-tensor,public-only\n\n"
        "Noise is seeded, so a comparison makes no privacy claim; its epsilons are those of the settings.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_compare)
    groups = add_flag_groups(parser)
    everyday = groups["everyday"]
    everyday.add_argument("--methods", default="dp-sgd,pdp,pcdp,rpdp,rsdp,public-only", metavar="A,B,...",
                          help="methods, each with settings of its own if needed: "
                          "pcdp:rank=50,subspace-scope=per-tensor")  # fmt: skip
    everyday.add_argument("--target-epsilons", metavar="X,Y,...",
                          help="epsilons to which noise is calibrated, instead of noise multipliers")  # fmt: skip
    everyday.add_argument("--noise-multipliers", metavar="X,Y,...", help="noise multipliers (default: 5,10,20,40)")
    add_settings(parser, groups, VARIED)
    everyday.add_argument(
        "--out", type=Path, metavar="FOLDER", help="folder of the finished runs (default: runs/compare-<data>)"
    )
    add_run_flags(groups["run"])
    groups["run"].add_argument("--seeds", type=int, default=2, metavar="N", help="runs of each cell (default: 2)")
    groups["run"].add_argument(
        "--workers", type=int, metavar="N", help="number of parallel runs (default: one per core)"
    )


def _compare(args: argparse.Namespace) -> int:
    from gnomon.studies.compare import ComparisonFailed, compare
    from gnomon.studies.method_specs import split_methods

    try:
        comparison = compare(
            settings_of(args, default_settings),
            split_methods(args.methods),
            noise_multipliers=_numbers("noise-multipliers", args.noise_multipliers),
            target_epsilons=_numbers("target-epsilons", args.target_epsilons),
            seeds=args.seeds,
            folder=args.out,
            workers=args.workers if args.workers is not None else os.cpu_count() or 1,
            progress=not args.quiet,
        )
    except ComparisonFailed as error:
        _print(error.comparison)
        raise
    _print(comparison)
    return 0


def _print(comparison: Comparison) -> None:
    """Print the table of the finished runs, if there are any, and the files that hold it."""
    if comparison.results:
        print(comparison.markdown())
        print(f"table    {comparison.folder / 'comparison.md'} and .csv")
        print(f"figure   {comparison.folder / 'comparison.png'} and .svg")


def _numbers(name: str, text: str | None) -> list[float]:
    """Return the numbers in the value of a flag; an empty list if the flag is missing or empty."""
    try:
        return [float(number) for number in text.split(",")] if text else []
    except ValueError:
        raise SettingError(name, text, "numbers separated by commas") from None
