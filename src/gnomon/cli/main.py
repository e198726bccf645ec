"""The command line: a thin front on the same objects."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

from gnomon.cli import account, audit, compare, federate, ledger, methods, report, site, train
from gnomon.cli.parser import Parser
from gnomon.cli.settings import INTERRUPTED
from gnomon.memory import keep_memory
from gnomon.version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0, 1 if an audit or a check refutes a claim, 2 for an error, or 130 after Ctrl-C.

    >>> main(["account", "--noise-multiplier", "10", "--sample-rate", "0.025", "--steps", "3200"])
    epsilon = 0.500 at delta = 1e-05 (add-remove, Poisson q = 0.025, PLD)
    0
    """
    parser = _parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return 0
    warnings.showwarning = _short_warning
    keep_memory()
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        print("\ngnomon: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has gone
        sys.stderr.close()
        return 0
    except (ValueError, TypeError, OSError) as error:
        if args.debug:
            raise
        print(f"gnomon: error: {error}", file=sys.stderr)
        return 2
    except Exception as error:  # not 1, which would refute a claim
        if args.debug:
            raise
        told = (str(error).splitlines() or [""])[0]
        print(f"gnomon: error: {type(error).__name__}: {told} (gnomon --debug shows where)", file=sys.stderr)
        return 2


def _parser() -> Parser:
    parser = Parser(
        prog="gnomon",
        description="Train models on data about people, under differential privacy.",
        epilog="Start with: gnomon train --data digits --target-epsilon 1",
    )
    parser.add_argument("--version", action="version", version=f"gnomon {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the whole traceback of an error")
    commands = parser.add_subparsers(dest="command", metavar="command")
    train.add_train(commands)
    compare.add_compare(commands)
    federate.add_federate(commands)
    site.add_site(commands)
    report.add_report(commands)
    report.add_diagnose(commands)
    report.add_reproduce(commands)
    account.add_account(commands)
    ledger.add_resume(commands, train.tell)
    ledger.add_ledger(commands)
    audit.add_audit(commands)
    methods.add_methods(commands)
    return parser


def _short_warning(message: Warning | str, *rest: Any, **more: Any) -> None:
    print(f"gnomon: warning: {message}", file=sys.stderr)
