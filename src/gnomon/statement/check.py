"""Whether a written privacy statement fits together: its epsilon with its own numbers, and with the files beside it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from gnomon.accounting import (
    Account,
    Accountant,
    Epsilon,
    FixedSize,
    FullBatch,
    Poisson,
    Sampling,
    Shuffled,
    TruncatedPoisson,
    digits,
)
from gnomon.statement.sealed import SEALED, fingerprints
from gnomon.text import counted

ROUNDING = 1e-3
"""By how much, relatively, a stated epsilon may lie below the recomputed one."""

SAMPLERS: dict[str, Callable[..., Sampling]] = {
    r"Poisson q = (\S+)": lambda q: Poisson(float(q)),
    r"truncated Poisson q = (\S+), at most (\d+) of (\d+)": lambda q, most, of: TruncatedPoisson(
        float(q), int(most), int(of)
    ),
    r"full batch": FullBatch,
    r"shuffled, (\d+) steps an epoch, no amplification": lambda steps: Shuffled(int(steps)),
    r"fixed batches of (\d+), no amplification": lambda size: FixedSize(int(size)),
}
ACCOUNTANTS: dict[str, Accountant] = {
    "PLD": "pld",
    "exact Gaussian": "pld",
    "Gaussian without amplification": "pld",
    "RDP": "rdp",
    "RDP classic": "rdp-classic",
    "GDP limit": "gdp",
}


def recomputed(statement: Mapping[str, Any]) -> Epsilon | None:
    """The epsilon that a statement's own numbers give; None where they do not say enough.

    >>> said = {"sampler": "Poisson q = 0.025", "noise_multiplier": 10.0, "steps": 3200, "delta": 1e-5,
    ...         "adjacency": "add-remove", "accountant": "PLD"}
    >>> recomputed(said)
    epsilon = 0.500 at delta = 1e-05 (add-remove, Poisson q = 0.025, PLD)
    """
    values = statement.get("account") or _from_words(statement)
    return None if values is None else _spent(json.dumps(values, sort_keys=True), statement["delta"])


def misfits(statement: Mapping[str, Any]) -> list[str]:
    """What in a statement contradicts itself, in plain words; empty if nothing does, or nothing can be recomputed.

    >>> said = {"sampler": "Poisson q = 0.025", "noise_multiplier": 10.0, "steps": 3200, "delta": 1e-5,
    ...         "adjacency": "add-remove", "accountant": "PLD", "guarantee": True}
    >>> misfits(said | {"epsilon": 0.5003})
    []
    >>> misfits(said | {"epsilon": 0.1})
    ['noise multiplier 10, Poisson q = 0.025 and 3200 steps give epsilon 0.500 at delta = 1e-05, not 0.1']
    >>> misfits(said | {"epsilon": None})
    ['it promises privacy with epsilon None, which is no finite number']
    """
    stated, promised = statement.get("epsilon"), statement.get("guarantee", False)
    if not isinstance(promised, bool):
        return [f"guarantee is {promised!r}, neither true nor false"]
    finite = isinstance(stated, int | float) and not isinstance(stated, bool) and math.isfinite(stated)
    if promised and not finite:
        return [f"it promises privacy with epsilon {stated!r}, which is no finite number"]
    try:
        spent = recomputed(statement)
    except (ValueError, KeyError, TypeError) as error:
        return [f"its numbers make no sense ({error})"]
    if spent is None:
        return []
    found, steps = _differences(statement, spent), counted(spent.steps, "step")
    if _below(stated, spent):
        found.append(
            f"noise multiplier {spent.noise_multiplier:.6g}, {spent.sampler} and {steps} give epsilon "
            f"{digits(spent)} at delta = {spent.delta:g}, not {statement['epsilon']:.15g}"
        )
    if statement.get("guarantee") and not spent.guarantee:
        found.append(f"{spent.accountant} gives no guarantee")
    return found


def changed_files(statement: Mapping[str, Any], folder: Path) -> list[str]:
    """The model or config in a folder, if it is not the one that the statement was written for. Missing ones are not.

    >>> changed_files({"epsilon": 1.0}, Path("nowhere"))
    []
    """
    stated, now = statement.get("files") or {}, fingerprints(folder)
    return [name for name in SEALED if name in stated and name in now and stated[name] != now[name]]


def _below(stated: float | None, spent: float) -> bool:
    """Whether less is stated than was spent; None is infinite."""
    return stated is not None and stated < spent * (1 - ROUNDING)


def _differences(statement: Mapping[str, Any], spent: Epsilon) -> list[str]:
    """Numbers for people that are not those of the account."""
    meant = {
        "noise_multiplier": spent.noise_multiplier,
        "steps": spent.steps,
        "adjacency": spent.adjacency,
        "sampler": spent.sampler,
    }
    account = statement.get("account")
    if account and "sample_rate" in statement:
        meant["sample_rate"] = account["sampler"].get("sample_rate")
    return [
        f"{name.replace('_', ' ')} is {statement.get(name)} in one place and {value} in another"
        for name, value in meant.items()
        if statement.get(name) != value
    ]


def _from_words(statement: Mapping[str, Any]) -> dict[str, Any] | None:
    """The account of a statement that was written before it carried one."""
    sampler, accountant = _sampler(statement["sampler"]), ACCOUNTANTS.get(statement["accountant"])
    if sampler is None or accountant is None:
        return None
    account = Account(sampler, statement["noise_multiplier"], statement["adjacency"], accountant)
    return account.to_dict() | {"steps": statement["steps"]}


def _sampler(text: str) -> Sampling | None:
    for pattern, made in SAMPLERS.items():
        if found := re.fullmatch(pattern, text):
            return made(*found.groups())
    return None


@lru_cache(maxsize=64)
def _spent(account: str, delta: float) -> Epsilon:
    return Account.from_dict(json.loads(account)).epsilon(delta)
