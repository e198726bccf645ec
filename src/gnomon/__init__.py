"""Gnomon: train PyTorch models on data about people, under differential privacy.

One pipeline, `records -> updates -> weights -> release -> step`; every method is a composition of its stages.
"""

from gnomon import accounting, clipping, data, methods, models, release, updates
from gnomon.training import BudgetExhausted, NotPrivate, Result, Statement, Trainer, evaluate

__version__ = "0.1.0"

__all__ = [
    "BudgetExhausted",
    "NotPrivate",
    "Result",
    "Statement",
    "Trainer",
    "accounting",
    "clipping",
    "data",
    "evaluate",
    "methods",
    "models",
    "release",
    "updates",
]
