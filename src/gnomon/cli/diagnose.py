"""The command `gnomon diagnose`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gnomon.errors import SettingError
from gnomon.runs.folder import TRAINING_RUN, kind_of_run, runs_inside


def add_command(commands: Any) -> None:
    """Add the command to the parser of all commands."""
    parser = commands.add_parser(
        "diagnose",
        help="examine gradients, subspaces, clipping and noise at a run's final model",
        description="Compute spectra, subspaces, clipping bias and signal-to-noise ratio at the saved model of a run "
        "and write them to diagnosis.json in its folder, for gnomon report. Values marked unprotected are computed on "
        "private records without noise: keep them with the data holder. For diagnostics during training, use gnomon "
        "train --diagnose.",
        epilog="examples:\n  gnomon diagnose runs/demo\n  gnomon diagnose runs/pcdp --public-only",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_diagnose)
    parser.add_argument("folder", type=Path, metavar="RUN", help="folder of a training run")
    parser.add_argument("--public-only", action="store_true", help="read no private record")
    parser.add_argument(
        "--rank", type=int, default=20, metavar="N", help="dimensions of the public subspace (default: 20)"
    )
    parser.add_argument(
        "--records", type=int, default=100, metavar="N", help="number of gradients to examine (default: 100)"
    )


def _diagnose(args: argparse.Namespace) -> int:
    from gnomon.runs.diagnose import diagnose, summary

    if (kind := kind_of_run(args.folder)) != TRAINING_RUN:
        inside = runs_inside(args.folder)
        remark = f", not of {kind}" if kind else f", such as {inside}" if inside else ""
        raise SettingError("run", str(args.folder), f"the folder of {TRAINING_RUN}{remark}")
    record = diagnose(args.folder, public_only=args.public_only, rank=args.rank, records=args.records)
    print(summary(record))
    print(f"\nfile  {args.folder / 'diagnosis.json'}")
    return 0
