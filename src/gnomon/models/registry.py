"""Models by name, with initial weights that depend on the seed alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from gnomon.data.sources.source import Source
from gnomon.errors import SettingError
from gnomon.models.custom import custom
from gnomon.models.networks import (
    any_shape,
    lenet,
    linear,
    logistic,
    mlp,
    paper_cnn,
    resnet20,
    small_cnn,
    text,
)
from gnomon.models.wide_resnets import wrn_10_1, wrn_16_4
from gnomon.validate import whole

_FACTORIES: dict[str, Callable[[Sequence[int], int], nn.Module]] = {
    "cnn": paper_cnn,
    "cnn-small": small_cnn,
    "lenet": lenet,
    "mlp": mlp,
    "resnet20": resnet20,
    "wrn-10-1": wrn_10_1,
    "wrn-16-4": wrn_16_4,
    "text": text,
    "logistic": logistic,
    "linear": linear,
}
NAMES = tuple(_FACTORIES)
"""The names that `build` accepts, besides those of the form package.module:Class."""


def build(name: str, input_shape: Sequence[int], classes: int, *, seed: int = 0) -> nn.Module:
    """Build a model.

    The initial weights depend on `seed` alone; the state of torch's global generator is left unchanged.

    Args:
        name: one of `NAMES`, or "package.module:Class" for a model of your own.
        input_shape: the shape of one record.
        classes: the number of classes.
        seed: the seed of the initial weights.

    Raises:
        SettingError: the name is unknown, or the model does not support the shape.

    >>> model = build("cnn-small", (1, 8, 8), 10, seed=1)
    >>> model(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    shape, classes, seed = any_shape(input_shape), whole("classes", classes, 2), whole("seed", seed, 0)
    is_path = isinstance(name, str) and ":" in name
    if not is_path and name not in _FACTORIES:
        raise SettingError("model", name, f"one of {', '.join(NAMES)}, or package.module:Class for a model of your own")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # of the CPU only: no other device is initialised
        return custom(name, shape, classes) if is_path else _FACTORIES[name](shape, classes)


def default_model(source: Source) -> str:
    """Return the name of the default model for the input shape of a data source.

    Images of at most 8x8 pixels get logistic regression, the most accurate model for them at small epsilon.

    >>> from gnomon.data.sources import load
    >>> default_model(load("digits"))
    'logistic'
    """
    return model_for_shape(source.input_shape)


def model_for_shape(shape: Sequence[int]) -> str:
    """Return the name of the default model for records of a shape.

    >>> model_for_shape((1, 28, 28)), model_for_shape((104,))
    ('cnn', 'logistic')
    """
    if len(shape) == 1:
        return "logistic"
    if len(shape) != 3 or shape[1] != shape[2]:
        return "mlp"
    if shape[1] <= 8:
        return "logistic"
    return {28: "cnn", 32: "lenet"}.get(shape[1], "cnn-small")
