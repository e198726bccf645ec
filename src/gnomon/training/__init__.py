"""Training: the private loop, its refusals, its checkpoints and its privacy statement."""

from gnomon.statement.statement import Statement
from gnomon.training.batches import Batches
from gnomon.training.checkpoint import CheckpointError, read_checkpoint, restore_checkpoint, save_checkpoint
from gnomon.training.checks.model import NotPrivate
from gnomon.training.engine import PrivateStep, Release
from gnomon.training.evaluate import evaluate
from gnomon.training.mechanism import Mechanism
from gnomon.training.observer import Observer, StepView
from gnomon.training.public_only import FullBatchAdam, FullBatchLBFGS, train_on_public
from gnomon.training.result import BudgetExhausted, TrainingResult
from gnomon.training.trainer import Trainer

__all__ = [
    "Batches",
    "BudgetExhausted",
    "CheckpointError",
    "FullBatchAdam",
    "FullBatchLBFGS",
    "Mechanism",
    "NotPrivate",
    "Observer",
    "PrivateStep",
    "Release",
    "Statement",
    "StepView",
    "Trainer",
    "TrainingResult",
    "evaluate",
    "read_checkpoint",
    "restore_checkpoint",
    "save_checkpoint",
    "train_on_public",
]
