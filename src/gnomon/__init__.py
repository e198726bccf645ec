"""Gnomon: train PyTorch models on data about people, under differential privacy.

One pipeline, `records -> updates -> coordinates -> weights -> release -> lift -> step`; every method is a
composition of its stages.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gnomon.errors import DataError, GnomonError, SettingError, StateError
from gnomon.version import __version__

if TYPE_CHECKING:
    from gnomon import (
        accounting,
        audit,
        clipping,
        constraints,
        data,
        diagnose,
        features,
        ledger,
        losses,
        methods,
        models,
        recipes,
        release,
        sampling,
        subspaces,
        updates,
    )
    from gnomon.estimators import CompressedClassifier, CompressedRegressor
    from gnomon.studies.compare import compare
    from gnomon.training import BudgetExhausted, Mechanism, NotPrivate, PrivateStep, Statement, Trainer, TrainingResult
    from gnomon.training import evaluate as evaluate  # type: ignore[no-redef]


__all__ = [
    "BudgetExhausted",
    "CompressedClassifier",
    "CompressedRegressor",
    "DataError",
    "GnomonError",
    "Mechanism",
    "NotPrivate",
    "PrivateStep",
    "SettingError",
    "StateError",
    "Statement",
    "Trainer",
    "TrainingResult",
    "__version__",
    "accounting",
    "audit",
    "clipping",
    "compare",
    "constraints",
    "data",
    "diagnose",
    "evaluate",
    "features",
    "ledger",
    "losses",
    "methods",
    "models",
    "recipes",
    "release",
    "sampling",
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
    "features",
    "ledger",
    "losses",
    "methods",
    "models",
    "recipes",
    "release",
    "sampling",
    "subspaces",
    "updates",
}


def __getattr__(name: str) -> Any:
    """Loads a part on first use, so that `gnomon --help` does not wait for torch."""
    if name in _PACKAGES:
        return importlib.import_module(f"gnomon.{name}")
    if name.startswith("Compressed") and name in __all__:
        return getattr(importlib.import_module("gnomon.estimators"), name)
    if name == "compare":
        return importlib.import_module("gnomon.studies.compare").compare
    if name in __all__:
        return getattr(importlib.import_module("gnomon.training"), name)
    raise AttributeError(f"module 'gnomon' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
