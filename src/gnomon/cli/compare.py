"""The command `gnomon compare`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from gnomon.cli.settings import add_flag_groups, add_run_flags, add_settings, settings_of
from gnomon.errors import SettingError
from gnomon.runs.config import recipe

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
        "alone, at epsilon 0; for npz files it needs --public-records. A setting that only some methods have reaches "
        "those methods; common settings of local steps reach dp-lsgd only, and other methods take them by name: "
        "pcdp:local-steps=3.",
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
    from gnomon.studies import compare, method_specs
    from gnomon.studies.cells import CellsFailed

    config = settings_of(args, recipe)
    methods = method_specs.split_methods(args.methods)
    method_specs.refuse_unheard(config, methods)
    if compare.has_public(config, methods) and compare.PUBLIC_ONLY not in methods:
        methods.append(compare.PUBLIC_ONLY)  # every comparison shows what public records achieve without privacy cost
    targets = _numbers("target-epsilons", args.target_epsilons)
    noise_levels = _numbers("noise-multipliers", args.noise_multipliers)
    noise_levels = noise_levels if noise_levels or targets else [5.0, 10.0, 20.0, 40.0]
    cells = compare.grid(config, methods, noise_levels, args.seeds, target_epsilons=targets)
    out = args.out or Path("runs") / f"compare-{config.data_name}"
    workers = args.workers if args.workers is not None else os.cpu_count() or 1
    failure = None
    try:
        compare.run(cells, out, workers=workers, progress=not args.quiet)
    except CellsFailed as error:
        failure = error
    if results := compare.done(cells, out):
        title = f"{config.data}, {config.epochs:g} epochs, batch {config.batch_size}"
        compare.write(compare.summary(results), out, title)
        compare.remember(out, config, methods, noise_levels, args.seeds, cells, targets)
    if failure is not None:
        raise failure
    return 0


def _numbers(name: str, text: str | None) -> list[float]:
    """Return the numbers of a list that a flag gives; an empty list if the flag is missing or empty."""
    try:
        return [float(part) for part in text.split(",")] if text else []
    except ValueError:
        raise SettingError(name, text, "numbers separated by commas") from None
