"""The inputs themselves as features, with norm one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gnomon.errors import DataError
from gnomon.features.feature_map import FeatureMap, as_float, unit_norm
from gnomon.models.networks import any_shape
from gnomon.validate import non_negative


class Scaled(FeatureMap):
    """The inputs of a record, flattened, with a constant appended and scaled to norm one.

    Use it for tables whose columns are encoded already, and for embeddings of a public network. The constant takes the
    place of a bias: relative to it, the norm of a record still counts.

    Args:
        shape: the shape of one record.
        constant: the number that is appended to each record; 0 appends none.

    >>> scaled = Scaled((2,), constant=12.0)
    >>> scaled(torch.tensor([[3.0, 4.0]]))
    tensor([[0.2308, 0.3077, 0.9231]])
    """

    def __init__(self, shape: Sequence[int], constant: float = 1.0) -> None:
        shape, constant = any_shape(shape), non_negative("constant", constant)
        appended = f" and the constant {constant:g}" if constant else ""
        super().__init__(
            f"inputs of {'x'.join(map(str, shape))} numbers{appended}, unit norm",
            math.prod(shape) + bool(constant),
            settings={"shape": list(shape), "constant": constant},
        )
        self.shape, self.constant = shape, constant

    def features(self, inputs: Tensor) -> Tensor:
        """Return the inputs with unit norm."""
        if tuple(inputs.shape[1:]) != self.shape:
            problem, remedy = (
                f"has shape {tuple(inputs.shape)}",
                f"this map takes (B, {', '.join(map(str, self.shape))})",
            )
            raise DataError("a batch of records", problem, remedy)
        rows = as_float(inputs).flatten(1)
        if self.constant:
            rows = torch.cat([rows, rows.new_full((len(rows), 1), self.constant)], 1)
        return unit_norm(rows)
