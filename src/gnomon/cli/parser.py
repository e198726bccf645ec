"""A parser of flags whose errors name the command, the nearest flag, and where help is."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

NOT_SHORT = ("--seed",)
"""Flags may be cut short. These are flags of other commands: a seed is not short for how many there are."""


class Parser(argparse.ArgumentParser):
    """One line for a wrong flag, instead of the usage of everything.

    >>> parser = Parser(prog="gnomon train")
    >>> _ = parser.add_argument("--target-epsilon")
    >>> parser.nearest("--target-epsilom")
    '--target-epsilon'
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuses unknown flags first: a misspelt one is often the one that is then missing."""
        given: Sequence[str] = sys.argv[1:] if args is None else list(args)
        if self._subparsers is not None:  # the command's own parser will see them
            return super().parse_known_args(given, namespace)
        for word in given:
            if word == "--":
                break
            if word.startswith("--") and not self._knows(word.partition("=")[0]):
                self._refuse(word.partition("=")[0])
        found, rest = super().parse_known_args(given, namespace)
        if rest:
            self.error(f"{rest[0]!r} is one argument too many")
        return found, rest

    def _knows(self, flag: str) -> bool:
        known = self._option_string_actions
        return flag in known or (flag not in NOT_SHORT and any(one.startswith(flag) for one in known))

    def _refuse(self, flag: str) -> NoReturn:
        near = self.nearest(flag)
        self.error(f"there is no flag {flag}" + (f": did you mean {near}?" if near else ""))

    def nearest(self, flag: str) -> str | None:
        """The flag that is most like a misspelt one, if any is."""
        return next(iter(difflib.get_close_matches(flag, self._option_string_actions, 1)), None)

    def error(self, message: str) -> NoReturn:
        """Says what is wrong and where help is."""
        self.exit(2, f"gnomon: error: {message} (see {self.prog} --help)\n")
