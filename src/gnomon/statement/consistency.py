"""Consistency of a written privacy statement: with its own numbers, and with the files beside it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from gnomon.accounting import Account, Accountant, Epsilon, digits
from gnomon.sampling.registry import scheme_from_name
from gnomon.text import counted

ROUNDING = 1e-3
"""By how much, relatively, a stated epsilon may lie below the recomputed one."""

ACCOUNTANTS: dict[str, Accountant] = {
    "PLD": "pld",
    "exact Gaussian": "pld",
    "Gaussian without amplification": "pld",
    "RDP": "rdp",
    "RDP classic": "rdp-classic",
    "GDP limit": "gdp",
}
"""The accountant to recompute epsilon with, for each name that a statement can give."""

HASHED_FILES = ("model.safetensors", "feature-map.safetensors", "config.yaml")
"""Files of a run folder whose SHA-256 the statement records."""


def recompute_epsilon(statement: Mapping[str, Any]) -> Epsilon | None:
    """Return the epsilon that follows from a statement's own numbers, or None if they do not determine it.

    Raises:
        ValueError, KeyError, TypeError: A number of the statement is invalid or missing.

    >>> statement = {"sampler": "Poisson q = 0.025", "noise_multiplier": 10.0, "steps": 3200, "delta": 1e-5,
    ...              "adjacency": "add-remove", "accountant": "PLD"}
    >>> recompute_epsilon(statement)
    epsilon = 0.500 at delta = 1e-05 (add-remove, Poisson q = 0.025, PLD)
    """
    account = statement.get("account") or _account_from_text(statement)
    return None if account is None else _epsilon(json.dumps(account, sort_keys=True), statement["delta"])


def contradictions(statement: Mapping[str, Any]) -> list[str]:
    """Return the contradictions within a statement, as messages.

    The result is empty if the statement is consistent, or if its numbers do not determine an epsilon.

    >>> statement = {"sampler": "Poisson q = 0.025", "noise_multiplier": 10.0, "steps": 3200, "delta": 1e-5,
    ...              "adjacency": "add-remove", "accountant": "PLD", "guarantee": True}
    >>> contradictions(statement | {"epsilon": 0.5003})
    []
    >>> contradictions(statement | {"epsilon": 0.1})
    ['noise multiplier 10, Poisson q = 0.025 and 3200 steps give epsilon 0.500 at delta = 1e-05, not 0.1']
    >>> contradictions(statement | {"epsilon": None})
    ['it guarantees privacy with epsilon None, which is not a finite number']
    """
    stated, guaranteed = statement.get("epsilon"), statement.get("guarantee", False)
    if not isinstance(guaranteed, bool):
        return [f"guarantee is {guaranteed!r}, which is neither true nor false"]
    finite = isinstance(stated, int | float) and not isinstance(stated, bool) and math.isfinite(stated)
    if guaranteed and not finite:
        return [f"it guarantees privacy with epsilon {stated!r}, which is not a finite number"]
    try:
        spent = recompute_epsilon(statement)
    except (ValueError, KeyError, TypeError) as error:
        return [f"its numbers are invalid ({error})"]
    if spent is None:
        return []
    messages, steps = _differences(statement, spent), counted(spent.steps, "step")
    if stated is not None and stated < spent * (1 - ROUNDING):  # None stands for infinity
        messages.append(
            f"noise multiplier {spent.noise_multiplier:.6g}, {spent.sampler} and {steps} give epsilon "
            f"{digits(spent)} at delta = {spent.delta:g}, not {statement['epsilon']:.15g}"
        )
    if guaranteed and not spent.guarantee:
        messages.append(f"it claims a guarantee, which the accountant {spent.accountant} does not give")
    return messages


def file_hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of the model and the configuration in a run folder, by file name; missing files are left out.

    >>> import tempfile
    >>> from gnomon.files import write_atomic
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomic(Path(folder) / "config.yaml", b"data: digits")
    ...     {name: sha256[:8] for name, sha256 in file_hashes(Path(folder)).items()}
    {'config.yaml': '53cd71a4'}
    """
    paths = [folder / name for name in HASHED_FILES if (folder / name).is_file()]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def changed_files(statement: Mapping[str, Any], folder: Path) -> list[str]:
    """Return the names of the files in a folder whose SHA-256 differs from the stated one. Missing files do not count.

    >>> changed_files({"epsilon": 1.0}, Path("nowhere"))
    []
    """
    stated, actual = statement.get("files") or {}, file_hashes(folder)
    return [name for name in HASHED_FILES if name in stated and name in actual and stated[name] != actual[name]]


def _differences(statement: Mapping[str, Any], spent: Epsilon) -> list[str]:
    """Return messages about fields for readers that differ from the account that epsilon is computed from."""
    accounted = {
        "noise_multiplier": spent.noise_multiplier,
        "steps": spent.steps,
        "adjacency": spent.adjacency,
        "sampler": spent.sampler,
    }
    account = statement.get("account")
    if account and "sample_rate" in statement:
        accounted["sample_rate"] = account["sampler"].get("sample_rate")
    return [
        f"{name.replace('_', ' ')} is stated as {statement.get(name)} and accounted as {value}"
        for name, value in accounted.items()
        if statement.get(name) != value
    ]


def _account_from_text(statement: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the account that the texts of a statement without an `account` field describe, or None."""
    sampler, accountant = scheme_from_name(statement["sampler"]), ACCOUNTANTS.get(statement["accountant"])
    if sampler is None or accountant is None:
        return None
    account = Account(sampler, statement["noise_multiplier"], statement["adjacency"], accountant)
    return account.to_dict() | {"steps": statement["steps"]}


@lru_cache(maxsize=64)
def _epsilon(account: str, delta: float) -> Epsilon:
    """Compute epsilon from an account in JSON, once for each account."""
    return Account.from_dict(json.loads(account)).epsilon(delta)
