"""The command `gnomon reproduce`."""

from __future__ import annotations

import argparse
import dataclasses
import os
from pathlib import Path
from typing import Any

from gnomon.errors import SettingError
from gnomon.text import counted


def add_command(commands: Any) -> None:
    """Add the command to the parser of all commands."""
    parser = commands.add_parser(
        "reproduce",
        help="reproduce a table or figure of a paper, published and measured side by side",
        description="Run an experiment of the package, or one described by a YAML file. Finished cells are kept under "
        "the hash of their settings: start the command again to continue. The folder of the experiment gets a table "
        "(result.md and .csv) and a figure (result.png and .svg, or result-unprotected if it shows unprotected values) "
        "of all finished cells; gnomon report makes a page of it.",
        epilog="examples:\n"
        "  gnomon reproduce --list\n"
        "  gnomon reproduce pcdp-table2 --fast\n"
        "  gnomon reproduce pcdp-table2 --seeds 4 --cells 'DP-SGD@*,PCDP*@22'\n"
        "  gnomon reproduce pcdp-table2 --only-done --out experiments/results\n"
        "  gnomon reproduce my-own.yaml",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_reproduce)
    parser.add_argument("name", nargs="?", metavar="NAME", help="an experiment of --list, or a YAML file")
    parser.add_argument("--list", action="store_true", help="list the experiments")
    parser.add_argument("--fast", action="store_true", help="fewer values, seeds and epochs: minutes instead of hours")
    parser.add_argument("--seeds", type=int, metavar="N", help="number of runs of each cell (default: as in the paper)")
    parser.add_argument(
        "--cells", default="", metavar="A,B,...", help="run only the cells LINE@VALUE that match; * matches anything"
    )
    parser.add_argument(
        "--only-done", action="store_true", help="run nothing: write table and figure of the finished cells"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="number of parallel runs (default: one per core)")
    parser.add_argument("--out", type=Path, default=Path("runs/reproduce"), metavar="FOLDER",
                        help="folder of the finished cells and the results (default: runs/reproduce)")  # fmt: skip
    parser.add_argument(
        "--data-dir", metavar="NAME", help="folder with the official files (default: GNOMON_DATA or ./data)"
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")


def _reproduce(args: argparse.Namespace) -> int:
    from gnomon.studies.reproduce import read_experiment, reproduce

    if args.list:
        return _list_experiments()
    if args.name is None:
        raise SettingError.with_message("give the name of an experiment of gnomon reproduce --list, or a YAML file")
    experiment = read_experiment(args.name)
    experiment = experiment.shortened() if args.fast else experiment
    if args.data_dir is not None:
        experiment = dataclasses.replace(experiment, settings=experiment.settings | {"data-dir": args.data_dir})
    workers = args.workers if args.workers is not None else os.cpu_count() or 1
    reproduce(
        experiment,
        args.out,
        cells=experiment.patterns(args.cells),
        seeds=args.seeds,
        only_done=args.only_done,
        workers=workers,
        progress=not args.quiet,
    )
    return 0


def _list_experiments() -> int:
    from gnomon.studies.reproduce import available, read_experiment
    from gnomon.studies.reproduce.experiment_files import ELSEWHERE

    for name in available():
        experiment = read_experiment(name)
        print(f"{name:<29} {experiment.title} ({counted(experiment.runs, 'run')})")
    print("\nExperiments with a script of their own in the repository:")
    for name, (title, command) in ELSEWHERE.items():
        print(f"{name:<29} {title}: {command}")
    return 0
