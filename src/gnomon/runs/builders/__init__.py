"""Builders: from the settings of a run to its records, model, method and Trainer."""

from gnomon.runs.builders.method import build_method, unknown_method, without_foreign_settings
from gnomon.runs.builders.preparation import Prepared, prepare
from gnomon.runs.builders.records import is_own, public_count, records, undeclared_public, uses_public
from gnomon.runs.builders.trainer import (
    CLASSES_COUNTED,
    WARM_START,
    build_model,
    build_trainer,
    public_only,
    public_origin,
)

__all__ = [
    "CLASSES_COUNTED",
    "WARM_START",
    "Prepared",
    "build_method",
    "build_model",
    "build_trainer",
    "is_own",
    "prepare",
    "public_count",
    "public_only",
    "public_origin",
    "records",
    "undeclared_public",
    "unknown_method",
    "uses_public",
    "without_foreign_settings",
]
