"""`gnomon compare`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnomon.cli.settings import add_settings, settings_of
from gnomon.errors import SettingError
from gnomon.runs.config import recipe

if TYPE_CHECKING:
    from gnomon.studies.compare import Comparison


def add_compare(commands: Any) -> None:
    parser = commands.add_parser(
        "compare",
        help="several methods, noise levels and seeds, side by side",
        description="Run methods x noise levels x seeds on one split of the data. Finished runs are kept in the "
        "folder: start it again to go on. The public-only line is what the public records give alone, at epsilon 0; "
        "own data have it only with --public. Settings that only some methods have go to those; local steps given in "
        "common are for dp-lsgd, and other methods take them by name: pcdp:local-steps=3.",
        epilog="examples:\n"
        "  gnomon compare --data digits --methods dp-sgd,pdp,pcdp,rpdp,rsdp,public-only\n"
        "  gnomon compare --data digits --target-epsilons 1,3 --methods dp-sgd,pcdp\n"
        "  gnomon compare --data mnist --private 10000 --public 100 --noise-multipliers 6,10,22 --epochs 80 \\\n"
        "      --batch-size 250 --max-grad-norm 0.01 --lr 5 --methods dp-sgd,pcdp,pcdp:scope=per-tensor,public-only\n\n"
        "Studies seed their noise, so a comparison makes no privacy claim; its epsilons are those of the settings.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_compare)
    parser.add_argument("--methods", default="dp-sgd,pdp,pcdp,rpdp,rsdp,public-only", metavar="A,B,...",
                        help="methods, with their own settings if need be: pcdp:rank=50,scope=per-tensor")  # fmt: skip
    parser.add_argument("--noise-multipliers", metavar="X,Y,...", help="noise levels (default: 5,10,20,40)")
    parser.add_argument("--target-epsilons", metavar="X,Y,...",
                        help="budgets instead of noise levels: noise is worked out for each")  # fmt: skip
    parser.add_argument("--seeds", type=int, default=2, metavar="N", help="runs of each cell (default: 2)")
    parser.add_argument("--workers", type=int, metavar="N", help="runs at a time (default: one a core)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file of settings; flags win over it")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to keep runs (default: runs/compare-<data>)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    add_settings(parser, frozenset({"method", "noise_multiplier", "target_epsilon", "seed", "insecure_noise_seed"}))


def _compare(args: argparse.Namespace) -> int:
    from gnomon.studies.compare import ComparisonFailed, compare
    from gnomon.studies.method_specs import split_methods

    try:
        comparison = compare(
            settings_of(args, recipe),
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


def _numbers(flag: str, text: str | None) -> list[float]:
    """Return the numbers in the value of a flag; an empty list if the flag is missing or empty."""
    try:
        return [float(number) for number in text.split(",")] if text else []
    except ValueError:
        raise SettingError(flag, text, "numbers separated by commas") from None
