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


def add_diagnose_flag(parser: argparse.ArgumentParser) -> None:
    """`gnomon train --diagnose [N]`."""
    parser.add_argument(
        "--diagnose",
        type=int,
        nargs="?",
        const=20,
        metavar="N",
        help="look inside every N steps (20 without a number) and write diagnostics.jsonl: unprotected",
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
    from gnomon.diagnose.run import diagnose, summary

    record = diagnose(args.folder, public_only=args.public_only, rank=args.rank, records=args.records)
    print(summary(record))
    print(f"\nfile  {args.folder / 'diagnosis.json'}")
    return 0
