"""Records: inputs and targets that belong together, indexed along their first dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnomon.errors import SettingError


@dataclass(frozen=True, eq=False)
class Records:
    """Inputs and targets of equal length.

    One number gives a pair, so Records serve as a torch map-style data set. A slice, a tensor of
    positions, a boolean mask or a list gives Records again.

    >>> records = Records(torch.eye(3), torch.tensor([0, 1, 2]))
    >>> records[1]
    (tensor([0., 1., 0.]), tensor(1))
    >>> len(records[torch.tensor([0, 2])]), len(records[:1])
    (2, 1)
    """

    inputs: Tensor  # (N, ...)
    targets: Tensor  # (N, ...)
    groups: NDArray[Any] | None = None  # (N,)
    """Whose each record is, where that is known: a speaker, a hospital. Training never reads it."""

    def __post_init__(self) -> None:
        if self.inputs.ndim == 0 or self.targets.ndim == 0:
            shapes = (tuple(self.inputs.shape), tuple(self.targets.shape))
            raise SettingError("shapes of (inputs, targets)", shapes, "at least one dimension for each")
        if len(self.inputs) != len(self.targets):
            lengths = (len(self.inputs), len(self.targets))
            raise SettingError("lengths of (inputs, targets)", lengths, "one target for each input")
        if self.groups is not None and self.groups.shape != (len(self.inputs),):
            raise SettingError(
                "shape of groups", self.groups.shape, f"one group for each of {len(self.inputs)} records"
            )

    def __len__(self) -> int:
        return len(self.inputs)

    @overload
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]: ...
    @overload
    def __getitem__(self, index: slice | Tensor | Sequence[int]) -> Records: ...
    def __getitem__(self, index: int | slice | Tensor | Sequence[int]) -> tuple[Tensor, Tensor] | Records:
        if isinstance(index, int | np.integer):
            return self.inputs[int(index)], self.targets[int(index)]
        if isinstance(index, slice):
            return Records(self.inputs[index], self.targets[index], None if self.groups is None else self.groups[index])
        positions = torch.as_tensor(index)
        if positions.numel() == 0 and positions.dtype != torch.bool:
            positions = positions.long()  # an empty list arrives as floats
        if positions.ndim == 0:
            positions = positions.reshape(1)
        groups = None if self.groups is None else self.groups[positions.cpu().numpy()]
        return Records(self.inputs[positions], self.targets[positions], groups)
