"""The command `gnomon methods`."""

from __future__ import annotations

import argparse
from typing import Any

from gnomon.runs.config import FAIR


def add_command(commands: Any) -> None:
    """Add the command to the parser of all commands."""
    parser = commands.add_parser("methods", help="list the methods and clip rules")
    parser.set_defaults(run=_methods)


def _methods(args: argparse.Namespace) -> int:
    from gnomon import clipping, methods

    for title, makers in (("methods", methods.METHODS), ("clip rules", clipping.RULES)):
        print(title)
        for name, maker in makers.items():
            summary = (maker.__doc__ or "").strip().splitlines()[0]
            print(f"  {name:<17} {summary}")
    print(f"\n{FAIR[0].upper()}{FAIR[1:]}.")
    return 0
