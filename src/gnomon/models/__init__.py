"""Models by name. None couples the records of a batch: no batch normalisation."""

from gnomon.models.convolutional import lenet, paper_cnn, small_cnn
from gnomon.models.dense import linear, logistic, mlp
from gnomon.models.registry import NAMES, build, default_model
from gnomon.models.residual import ResidualBlock, resnet20
from gnomon.models.sparse import SparseLinear
from gnomon.models.text import Symbols, text

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
    "paper_cnn",
    "resnet20",
    "small_cnn",
    "text",
]
