"""A linear layer on sparse rows."""

from __future__ import annotations

from torch import Tensor, nn


class SparseLinear(nn.Module):
    """`sum_j values_j W[columns_j]`: a linear layer without bias on rows that list their entries; starts at zero.

    The weights are (features, outputs), so the entries of one feature lie together.

    >>> import torch
    >>> SparseLinear(4, 2)(torch.tensor([[1, 3]]), torch.tensor([[1.0, 2.0]])).shape
    torch.Size([1, 2])
    """

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.table = nn.Embedding(features, outputs)
        nn.init.zeros_(self.table.weight)

    def forward(self, columns: Tensor, values: Tensor) -> Tensor:
        found: Tensor = (self.table(columns) * values[:, :, None]).sum(1)
        return found
