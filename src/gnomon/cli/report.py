"""The command `gnomon report`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gnomon.errors import SettingError
from gnomon.runs.folder import kind_of_run, runs_inside


def add_command(commands: Any) -> None:
    """Add the command to the parser of all commands."""
    parser = commands.add_parser(
        "report",
        help="write an HTML page about runs or comparisons",
        description="Write one HTML file about runs or comparisons: the privacy statement in plain words, budget, "
        "curves, tables, and the command to repeat it. The file is self-contained and loads nothing.",
        epilog="examples:\n"
        "  gnomon report runs/demo                            # writes runs/demo/report.html\n"
        "  gnomon report runs/demo runs/again --out both.html\n"
        "  gnomon report runs/compare-digits --without-unprotected",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_report)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folder of a run or a comparison")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="HTML file to write (default: report.html, in the run's folder if there is one run)",
    )
    parser.add_argument(
        "--without-unprotected",
        action="store_true",
        help="leave out values that were computed on private records without noise",
    )


def _report(args: argparse.Namespace) -> int:
    from gnomon.report import report

    for folder in args.runs:
        if not kind_of_run(folder) and (inside := runs_inside(folder)):
            raise SettingError("run", str(folder), f"the folder of a run, such as {inside}")
    path = report(args.runs, args.out, unprotected=not args.without_unprotected)
    print(f"report   {path}")
    print(f"figures  {path.with_name(f'{path.stem}-figures')}")
    return 0
