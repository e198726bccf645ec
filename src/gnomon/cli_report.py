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
    from gnomon.report import report

    path = report(args.runs, args.out, unprotected=not args.without_unprotected)
    print(f"report   {path}")
    print(f"figures  {path.with_name(f'{path.stem}-figures')}")
    return 0
