"""Flags that choose the ledger and the data set to which a run is charged, and the ledger that they name."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from gnomon.errors import SettingError

if TYPE_CHECKING:
    from gnomon.ledger import Ledger


def add_ledger_flags(group: argparse._ArgumentGroup) -> None:
    """Add `--ledger` and `--data-id` for commands that charge a run."""
    group.add_argument(
        "--ledger",
        metavar="FILE",
        help="ledger that adds up all runs on the same data (default: GNOMON_LEDGER, or a file in the user's data "
        "folder, see gnomon ledger show); 'none' accounts for this run alone",
    )
    group.add_argument(
        "--data-id",
        metavar="NAME",
        help="charge the run to the data set with this name or id in the ledger, instead of recognising the data set "
        "by its records; the statement gives the total of all runs under this name",
    )


def chosen_ledger(path: str | None) -> Ledger | None:
    """Return the ledger of `--ledger`, or by default that of GNOMON_LEDGER; None for "none".

    >>> chosen_ledger("none") is None
    True
    """
    from gnomon.ledger import Ledger, default_path
    from gnomon.ledger.ledger import NO_LEDGER

    location = None if path == NO_LEDGER else path or default_path()
    return None if location is None else Ledger(location)


def warn_if_new(ledger: Ledger | None) -> None:
    """Tell the user if a ledger has no entry yet: its path may be mistyped, or the file lost."""
    from gnomon.ledger.ledger import new_ledger_notice

    if ledger is not None and not ledger.head().number:
        print(f"gnomon: {new_ledger_notice(str(ledger.path))}", file=sys.stderr)


def existing_ledger(path: str | None) -> Ledger:
    """Return the ledger of `--ledger`, or by default that of GNOMON_LEDGER; raise SettingError if it does not exist."""
    from gnomon.ledger import Ledger, required_path

    location = required_path(path)
    if not location.exists():
        raise SettingError(
            "ledger",
            str(location),
            "a ledger that exists; the first private run creates it, and so does gnomon ledger budget --by-name",
        )
    return Ledger(location)
