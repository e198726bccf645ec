"""Training: the private loop, its refusals, its checkpoints and its privacy statement."""

from gnomon.training.checkpoint import CheckpointError, read_checkpoint, restore_checkpoint, save_checkpoint
from gnomon.training.engine import PrivateStep, Release
from gnomon.training.evaluate import evaluate
from gnomon.training.public import train_on_public
from gnomon.training.refusals import NotPrivate
from gnomon.training.result import BudgetExhausted, Result
from gnomon.training.statement import Statement
from gnomon.training.trainer import Trainer
from gnomon.training.view import Observer, View

__all__ = [
    "BudgetExhausted",
    "CheckpointError",
    "NotPrivate",
    "Observer",
    "PrivateStep",
    "Release",
    "Result",
    "Statement",
    "Trainer",
    "View",
    "evaluate",
    "read_checkpoint",
    "restore_checkpoint",
    "save_checkpoint",
    "train_on_public",
]
