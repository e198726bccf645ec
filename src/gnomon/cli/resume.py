"""The command `gnomon resume`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gnomon.cli.ledger_flags import existing_ledger
from gnomon.cli.train import print_outcome


def add_command(commands: Any) -> None:
    """Add the command to the parser of all commands."""
    parser = commands.add_parser(
        "resume",
        help="resume a run that was stopped or killed",
        description="Resume a run from its last checkpoint, with fresh noise. Steps that are reserved in the ledger "
        "count as taken, which may be up to 15 more than were taken. A changed config, changed data and an edited "
        "ledger are refused.",
        epilog="example:\n  gnomon resume runs/demo",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_resume)
    parser.add_argument("folder", type=Path, help="the run folder")
    parser.add_argument("--ledger", metavar="FILE", help="the ledger of the run, if it was moved")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")


def _resume(args: argparse.Namespace) -> int:
    from gnomon.runs.resume import resume

    ledger = existing_ledger(args.ledger) if args.ledger else None
    return print_outcome(resume(args.folder, ledger=ledger, progress=not args.quiet))
