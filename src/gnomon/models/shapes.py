"""Check the shape of a model's input."""

from __future__ import annotations

from collections.abc import Sequence

from gnomon.errors import SettingError
from gnomon.validate import whole


def any_shape(input_shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of one record as a tuple of sizes.

    >>> any_shape([1, 8, 8])
    (1, 8, 8)
    """
    if isinstance(input_shape, str) or not isinstance(input_shape, Sequence) or not len(input_shape):
        raise SettingError("input_shape", input_shape, "the sizes of one record, such as (1, 28, 28)")
    return tuple(whole("input_shape", size) for size in input_shape)


def image_shape(model: str, input_shape: Sequence[int], sides: Sequence[int], others: str) -> tuple[int, int]:
    """(channels, side) of a square image, if its side is one the model takes; `others` names the way out.

    >>> image_shape("cnn", (1, 28, 28), [28], "another model")
    (1, 28)
    """
    shape = any_shape(input_shape)
    if len(shape) != 3 or shape[1] != shape[2] or shape[1] not in sides:
        sizes = " or ".join(f"{side}x{side}" for side in sides)
        raise SettingError("input_shape", shape, f"{sizes} images to {model!r}, or use {others}")
    return shape[0], shape[1]
