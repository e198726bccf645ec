"""Training: the private loop, its refusals and its privacy statement."""

from gnomon.training.evaluate import evaluate
from gnomon.training.public import train_on_public
from gnomon.training.refusals import NotPrivate
from gnomon.training.statement import Statement
from gnomon.training.trainer import BudgetExhausted, Result, Trainer
from gnomon.training.view import Observer, View

__all__ = [
    "BudgetExhausted",
    "NotPrivate",
    "Observer",
    "Result",
    "Statement",
    "Trainer",
    "View",
    "evaluate",
    "train_on_public",
]
