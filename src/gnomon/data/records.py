"""Records: tensors of inputs and targets, indexed along their first dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnomon.errors import DataError


@dataclass(frozen=True, eq=False)
class Records:
    """Inputs and targets of equal length.

    An integer index returns a pair, so Records work as a torch map-style Dataset. A slice, a tensor of positions, a
    boolean mask or a list returns Records.

    Raises:
        DataError: if inputs, targets, groups and raw records differ in length.

    >>> records = Records(torch.eye(3), torch.tensor([0, 1, 2]))
    >>> records[1]
    (tensor([0., 1., 0.]), tensor(1))
    >>> len(records[torch.tensor([0, 2])]), len(records[:1])
    (2, 1)
    """

    inputs: Tensor  # (N, ...)
    targets: Tensor  # (N, ...)
    groups: NDArray[Any] | None = None  # (N,)
    """The group of each record, such as a speaker or a hospital, where it is known. Training never reads it."""
    raw: Records | None = None
    """The same records before a feature map. The ledger and the checks for shared records recognise records by these,
    so that a person's features are not counted as another person."""

    def __post_init__(self) -> None:
        if self.inputs.ndim == 0 or self.targets.ndim == 0:
            shapes = f"{tuple(self.inputs.shape)} and targets of shape {tuple(self.targets.shape)}"
            raise DataError("records", f"have inputs of shape {shapes}", "give each at least one dimension")
        if len(self.inputs) != len(self.targets):
            problem = f"have {len(self.inputs)} inputs and {len(self.targets)} targets"
            raise DataError("records", problem, "give one target for each input")
        if self.groups is not None and self.groups.shape != (len(self.inputs),):
            problem = f"have groups of shape {self.groups.shape}"
            raise DataError("records", problem, f"give one group for each of {len(self.inputs)} records")
        if self.raw is not None and len(self.raw) != len(self.inputs):
            problem = f"have {len(self.inputs)} inputs and {len(self.raw)} raw records"
            raise DataError("records", problem, "give the raw record of each input")

    def __len__(self) -> int:
        return len(self.inputs)

    @overload
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]: ...
    @overload
    def __getitem__(self, index: slice | Tensor | Sequence[int]) -> Records: ...
    def __getitem__(self, index: int | slice | Tensor | Sequence[int]) -> tuple[Tensor, Tensor] | Records:
        if isinstance(index, int | np.integer):
            return self.inputs[int(index)], self.targets[int(index)]
        if not isinstance(index, slice):
            index = torch.as_tensor(index)
            if index.numel() == 0 and index.dtype != torch.bool:
                index = index.long()  # torch converts an empty list to floats
            if index.ndim == 0:
                index = index.reshape(1)
        groups = None
        if self.groups is not None:
            groups = self.groups[index if isinstance(index, slice) else index.cpu().numpy()]
        raw = None if self.raw is None else self.raw[index]
        return Records(self.inputs[index], self.targets[index], groups, raw)
