"""The models by name, with weights that depend on the seed alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from gnomon.data.sources.source import Source
from gnomon.errors import SettingError
from gnomon.models.convolutional import lenet, paper_cnn, small_cnn
from gnomon.models.custom import custom
from gnomon.models.dense import linear, logistic, mlp
from gnomon.models.residual import resnet20
from gnomon.models.shapes import any_shape
from gnomon.models.text import text
from gnomon.validate import whole

_MAKERS: dict[str, Callable[[Sequence[int], int], nn.Module]] = {
    "cnn": paper_cnn,
    "cnn-small": small_cnn,
    "lenet": lenet,
    "mlp": mlp,
    "resnet20": resnet20,
    "text": text,
    "logistic": logistic,
    "linear": linear,
}
NAMES = tuple(_MAKERS)


def build(name: str, input_shape: Sequence[int], classes: int, *, seed: int = 0) -> nn.Module:
    """A model by name, or your own by "package.module:Class".

    Torch's global random state is as before afterwards.

    >>> model = build("cnn-small", (1, 8, 8), 10, seed=1)
    >>> model(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    shape, classes, seed = any_shape(input_shape), whole("classes", classes, 2), whole("seed", seed, 0)
    own = isinstance(name, str) and ":" in name
    if not own and name not in _MAKERS:
        raise SettingError("model", name, f"one of {', '.join(NAMES)}, or package.module:Class for your own")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # the CPU's alone: other devices are never touched
        return custom(name, shape, classes) if own else _MAKERS[name](shape, classes)


def default_model(source: Source) -> str:
    """The name of a model that suits the source's input shape.

    Images of 8x8 or less get logistic regression: at small epsilon it learns the most of so few pixels.

    >>> from gnomon.data.sources import load
    >>> default_model(load("digits"))
    'logistic'
    """
    shape = source.input_shape
    if len(shape) == 1:
        return "logistic"
    if len(shape) != 3 or shape[1] != shape[2]:
        return "mlp"
    if shape[1] <= 8:
        return "logistic"
    return {28: "cnn", 32: "lenet"}.get(shape[1], "cnn-small")
