"""Builders: from the settings of a run to its records, model, method and Trainer."""

from gnomon.runs.builders.method import build_method, unknown_method, without_foreign_settings
from gnomon.runs.builders.records import is_own, public_count, records, uses_public
from gnomon.runs.builders.trainer import CLASSES_COUNTED, build_model, build_trainer, public_only

__all__ = [
    "CLASSES_COUNTED",
    "build_method",
    "build_model",
    "build_trainer",
    "is_own",
    "public_count",
    "public_only",
    "records",
    "unknown_method",
    "uses_public",
    "without_foreign_settings",
]
