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
from gnomon.models.wide_resnets import StandardisedConv2d, WideBlock, wide_resnet, wrn_10_1, wrn_16_4

__all__ = [
    "NAMES",
    "ResidualBlock",
    "SparseLinear",
    "StandardisedConv2d",
    "Symbols",
    "WideBlock",
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
    "wide_resnet",
    "wrn_10_1",
    "wrn_16_4",
]
