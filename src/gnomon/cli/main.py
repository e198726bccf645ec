"""Entry point of the command line: reads the arguments, runs a command, and reports errors in one line."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

from gnomon.cli import (
    account,
    audit,
    compare,
    diagnose,
    federate,
    ledger,
    methods,
    recipes,
    report,
    reproduce,
    resume,
    site,
    train,
)
from gnomon.cli.parser import Parser
from gnomon.cli.settings import INTERRUPTED
from gnomon.errors import SettingError
from gnomon.memory import keep_memory
from gnomon.runs.setting_names import current_name, dashed
from gnomon.version import __version__

COMMANDS = (
    train,
    resume,
    compare,
    federate,
    site,
    report,
    diagnose,
    reproduce,
    account,
    ledger,
    audit,
    methods,
    recipes,
)
"""Modules of the commands, in the order in which `gnomon --help` lists them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    The exit code is 0, or 1 if an audit or a check refutes a claim, 2 for an error, and 130 after Ctrl-C.

    >>> main(["account", "--noise-multiplier", "10", "--sample-rate", "0.025", "--steps", "3200"])
    epsilon = 0.500 at delta = 1e-05 (add-remove, Poisson q = 0.025, PLD)
    0
    """
    words = sys.argv[1:] if argv is None else list(argv)
    parser = _parser()
    args = parser.parse_args(words)
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
    except BrokenPipeError:  # the reader of our output, such as `head`, has closed the pipe
        sys.stderr.close()
        return 0
    except (ValueError, TypeError, OSError) as error:
        if args.debug:
            raise
        print(f"gnomon: error: {_message(error, words)}", file=sys.stderr)
        return 2
    except Exception as error:  # exit code 2, because 1 means that a claim was refuted
        if args.debug:
            raise
        first_line = (str(error).splitlines() or [""])[0]
        print(f"gnomon: error: {type(error).__name__}: {first_line} (gnomon --debug shows where)", file=sys.stderr)
        return 2


def _parser() -> Parser:
    parser = Parser(
        prog="gnomon",
        description="Train models on personal data under differential privacy.",
        epilog="Start with: gnomon train --data digits --target-epsilon 1",
    )
    parser.add_argument("--version", action="version", version=f"gnomon {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the whole traceback of an error")
    commands = parser.add_subparsers(dest="command", metavar="command")
    for module in COMMANDS:
        module.add_command(commands)
    return parser


def _message(error: Exception, words: Sequence[str]) -> str:
    """Return the message of an error, with the flag that was typed or is missing in place of a parameter's name."""
    message = str(error)
    if not isinstance(error, SettingError) or not message.startswith(f"{error.name} "):
        return message
    setting = dashed(current_name(error.name))
    is_missing = message.startswith(f"{error.name} is required")
    if is_missing or f"--{setting}" in {word.partition("=")[0] for word in words}:
        return f"--{setting}{message.removeprefix(error.name)}"
    return f"{setting}{message.removeprefix(error.name)}" if "--config" in words else message


def _short_warning(message: Warning | str, *rest: Any, **more: Any) -> None:
    print(f"gnomon: warning: {message}", file=sys.stderr)
