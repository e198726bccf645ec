"""Gnomon: train PyTorch models on data about people, under differential privacy.

One pipeline, `records -> updates -> coordinates -> weights -> release -> lift -> step`; every method is a
composition of its stages.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gnomon.version import __version__

if TYPE_CHECKING:
    from gnomon import (
        accounting,
        audit,
        clipping,
        constraints,
        data,
        diagnose,
        ledger,
        losses,
        methods,
        models,
        release,
        subspaces,
        updates,
    )
    from gnomon.estimators import CompressedClassifier, CompressedRegressor
    from gnomon.training import BudgetExhausted, Mechanism, NotPrivate, PrivateStep, Statement, Trainer, TrainingResult
    from gnomon.training import evaluate as evaluate  # type: ignore[no-redef]


__all__ = [
    "BudgetExhausted",
    "CompressedClassifier",
    "CompressedRegressor",
    "Mechanism",
    "NotPrivate",
    "PrivateStep",
    "Statement",
    "Trainer",
    "TrainingResult",
    "__version__",
    "accounting",
    "audit",
    "clipping",
    "constraints",
    "data",
    "diagnose",
    "evaluate",
    "ledger",
    "losses",
    "methods",
    "models",
    "release",
    "subspaces",
    "updates",
]

_PACKAGES = {
    "accounting",
    "audit",
    "clipping",
    "constraints",
    "data",
    "diagnose",
    "ledger",
    "losses",
    "methods",
    "models",
    "release",
    "subspaces",
    "updates",
}


def __getattr__(name: str) -> Any:
    """Loads a part on first use, so that `gnomon --help` does not wait for torch."""
    if name in _PACKAGES:
        return importlib.import_module(f"gnomon.{name}")
    if name.startswith("Compressed") and name in __all__:
        return getattr(importlib.import_module("gnomon.estimators"), name)
    if name in __all__:
        return getattr(importlib.import_module("gnomon.training"), name)
    raise AttributeError(f"module 'gnomon' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
