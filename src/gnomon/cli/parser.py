"""Argument parser whose errors are one line: the problem, the nearest flag, and where help is."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NoReturn

from gnomon.runs.setting_names import current_name, dashed


class Parser(argparse.ArgumentParser):
    """Argument parser that accepts flags by their full names only and answers a wrong flag with a suggestion.

    >>> parser = Parser(prog="gnomon train")
    >>> _ = parser.add_argument("--target-epsilon")
    >>> parser.suggestion("--target-epsilom")
    ': did you mean --target-epsilon?'
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False} | settings)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse the command line. Unknown flags are refused first: a required flag is often missing because of one."""
        words: Sequence[str] = sys.argv[1:] if args is None else list(args)
        has_commands = self._subparsers is not None
        own_words = takewhile(lambda word: word.startswith("-") if has_commands else word != "--", words)
        for flag in (word.partition("=")[0] for word in own_words if word.startswith("--")):
            if flag not in self._option_string_actions:
                self.error(f"there is no flag {flag}{self.suggestion(flag)}")
        parsed, rest = super().parse_known_args(words, namespace)
        if rest and not has_commands:
            self.error(f"{rest[0]!r} is one argument too many")
        return parsed, rest

    def suggestion(self, flag: str) -> str:
        """Return the end of an error message about an unknown flag: its current name, or the flags most like it."""
        known = [name for name in self._option_string_actions if name.startswith("--")]
        name = flag.removeprefix("--")
        current = f"--{dashed(current_name(name))}"
        if current in known:
            return f": it is now called {current}"
        near = [full for full in known if full.startswith(flag)] or difflib.get_close_matches(flag, known, 1)
        return f": did you mean {' or '.join(near[:3])}?" if near else ""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and where help is, and exit with code 2."""
        self.exit(2, f"gnomon: error: {message} (see {self.prog} --help)\n")
