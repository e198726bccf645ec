"""The commands that look back on runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_report(commands: Any) -> None:
    """`gnomon report`: one page about runs."""
    parser = commands.add_parser(
        "report",
        help="one HTML page about runs or a comparison",
        description="Write one HTML file about runs or comparisons: the privacy statement in plain words, budget, "
        "curves, tables, and the command to repeat it. The file is complete in itself and loads nothing.",
        epilog="examples:\n"
        "  gnomon report runs/demo                            # writes runs/demo/report.html\n"
        "  gnomon report runs/demo runs/again --out both.html\n"
        "  gnomon report runs/compare-digits --without-unprotected",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_report)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folder of a run or a comparison")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="default: report.html, in the run's folder if there is one run"
    )
    parser.add_argument(
        "--without-unprotected",
        action="store_true",
        help="leave out what was computed on private records without noise",
    )


def _report(args: argparse.Namespace) -> int:
    from gnomon.errors import SettingError
    from gnomon.report import report

    for folder in args.runs:
        if not _holds(folder) and (inside := _runs_inside(folder)):
            raise SettingError("run", str(folder), f"folders of runs, of which it has {inside}")
    path = report(args.runs, args.out, unprotected=not args.without_unprotected)
    print(f"report   {path}")
    print(f"figures  {path.with_name(f'{path.stem}-figures')}")
    return 0


MARKS = {
    "reproduction.json": "a reproduction",
    "comparison.csv": "a comparison",
    "bytes.md": "a federation",
    "metrics.jsonl": "a training run",
    "statement.json": "a training run",
    "config.yaml": "a training run",
}
"""What tells which kind of run a folder holds, the most telling first."""


def _holds(folder: Path) -> str:
    """What is in a folder, in words; nothing if it is no run."""
    return next((kind for name, kind in MARKS.items() if (folder / name).exists()), "")


def _runs_inside(folder: Path) -> str:
    """The folders of runs in a folder, as a list to read."""
    if not folder.is_dir():
        return ""
    found = [str(one) for one in sorted(folder.iterdir()) if one.is_dir() and _holds(one)]
    return ", ".join(found[:10]) + (f" and {len(found) - 10} more" if len(found) > 10 else "")


def add_diagnose_flag(parser: argparse.ArgumentParser) -> None:
    """`gnomon train --diagnose [N]` and `--diagnose-public-only`."""
    parser.add_argument(
        "--diagnose",
        type=int,
        nargs="?",
        const=20,
        metavar="N",
        help="look inside every N steps (20 without a number) and write diagnostics.jsonl: unprotected",
    )
    parser.add_argument(
        "--diagnose-public-only",
        action="store_true",
        help="the same without reading a private record: nothing in diagnostics.jsonl is unprotected",
    )


def add_diagnose(commands: Any) -> None:
    """`gnomon diagnose`: a look inside a finished run."""
    parser = commands.add_parser(
        "diagnose",
        help="look at gradients, subspaces, clipping and noise at a run's final model",
        description="Compute spectra, subspaces, clipping bias and signal-to-noise at the saved model of a run and "
        "write them to diagnosis.json in its folder, for gnomon report. Values marked unprotected read private records "
        "without noise: keep them with the data holder. To look along training, use gnomon train --diagnose.",
        epilog="examples:\n  gnomon diagnose runs/demo\n  gnomon diagnose runs/pcdp --public-only",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_diagnose)
    parser.add_argument("folder", type=Path, metavar="RUN", help="folder of a training run")
    parser.add_argument("--public-only", action="store_true", help="read no private record")
    parser.add_argument(
        "--rank", type=int, default=20, metavar="N", help="dimensions of the public subspace (default: 20)"
    )
    parser.add_argument("--records", type=int, default=100, metavar="N", help="gradients to look at (default: 100)")


def _diagnose(args: argparse.Namespace) -> int:
    from gnomon.errors import SettingError
    from gnomon.runs.diagnose import diagnose, summary

    if (kind := _holds(args.folder)) != "a training run":
        inside = _runs_inside(args.folder)
        what = f"it holds {kind}" if kind else inside and f"it has {inside}"
        raise SettingError("run", str(args.folder), "the folder of a training run" + (f": {what}" if what else ""))
    record = diagnose(args.folder, public_only=args.public_only, rank=args.rank, records=args.records)
    print(summary(record))
    print(f"\nfile  {args.folder / 'diagnosis.json'}")
    return 0


def add_reproduce(commands: Any) -> None:
    """`gnomon reproduce`: tables and figures of the papers."""
    parser = commands.add_parser(
        "reproduce",
        help="run a table or figure of a paper, published and measured side by side",
        description="Run an experiment that comes with the package, or one from a YAML file of yours. Finished cells "
        "are kept by the hash of their settings: start it again to go on. The folder of the experiment gets a table, "
        "result.md and .csv, and a picture, result.png and .svg (result-unprotected where it shows unprotected "
        "values), of all its cells that are there; gnomon report makes a page of it.",
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
    parser.add_argument("--list", action="store_true", help="what there is to reproduce")
    parser.add_argument("--fast", action="store_true", help="fewer values, seeds and epochs: minutes instead of hours")
    parser.add_argument("--seeds", type=int, metavar="N", help="run so many of each cell (default: as in the paper)")
    parser.add_argument(
        "--cells", default="", metavar="A,B,...", help="run only cells LINE@VALUE that match, * is anything"
    )
    parser.add_argument(
        "--only-done", action="store_true", help="run nothing: table and picture of the cells that are there"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="runs at a time (default: one a core)")
    parser.add_argument("--out", type=Path, default=Path("runs/reproduce"), metavar="FOLDER",
                        help="where runs and results are kept (default: runs/reproduce)")  # fmt: skip
    parser.add_argument(
        "--data-dir", metavar="NAME", help="folder with the official files (default: GNOMON_DATA or ./data)"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def _reproduce(args: argparse.Namespace) -> int:
    import dataclasses
    import os

    from gnomon.errors import SettingError
    from gnomon.studies.reproduce import available, read_experiment, reproduce
    from gnomon.studies.reproduce.experiment_files import ELSEWHERE

    if args.list:
        for name in available():
            one = read_experiment(name)
            print(f"{name:<29} {one.title} ({one.runs} run{'' if one.runs == 1 else 's'})")
        print("\nWith a runner of their own, in the repository:")
        for name, (title, command) in ELSEWHERE.items():
            print(f"{name:<29} {title}: {command}")
        return 0
    if args.name is None:
        raise SettingError("experiment", None, "a name of gnomon reproduce --list, or a YAML file")
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
