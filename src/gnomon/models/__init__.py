"""Models by name, and models of the user's own. None lets the records of a batch interact."""

from gnomon.models.networks import (
    ResidualBlock,
    SparseLinear,
    Symbols,
    lenet,
    linear,
    logistic,
    mlp,
    paper_cnn,
    resnet20,
    small_cnn,
    text,
)
from gnomon.models.registry import NAMES, build, default_model, model_for_shape

__all__ = [
    "NAMES",
    "ResidualBlock",
    "SparseLinear",
    "Symbols",
    "build",
    "default_model",
    "lenet",
    "linear",
    "logistic",
    "mlp",
    "model_for_shape",
    "paper_cnn",
    "resnet20",
    "small_cnn",
    "text",
]
