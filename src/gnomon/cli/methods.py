"""`gnomon methods`."""

from __future__ import annotations

import argparse
from typing import Any

from gnomon.runs.config import FAIR


def add_methods(commands: Any) -> None:
    parser = commands.add_parser("methods", help="list the methods and clip rules")
    parser.set_defaults(run=_methods)


def _methods(args: argparse.Namespace) -> int:
    from gnomon import clipping, methods

    for title, table in (("methods", methods.METHODS), ("clip rules", clipping.RULES)):
        print(title)
        for name, maker in table.items():
            first = (maker.__doc__ or "").strip().splitlines()[0]
            print(f"  {name:<17} {first}")
    print(f"\n{FAIR[0].upper()}{FAIR[1:]}.")
    return 0
