"""Per-sample updates of a whole model: a leaf for each parameter, and four operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from gnomon.updates.leaves import Dense, Leaf, Masked


class Updates:
    """What each sample would change, for every trainable parameter of a model.

    Leaves are visited one at a time, so no operation but `dense` ever holds samples x parameters.

    >>> from torch import nn
    >>> from gnomon.updates import gradients
    >>> model = nn.Linear(2, 1, bias=False)
    >>> loss = lambda outputs, targets: ((outputs - targets) ** 2).sum(1)
    >>> updates = gradients(model, loss, torch.randn(4, 2), torch.randn(4, 1))
    >>> len(updates), updates.names, updates.norms().shape, updates.gram(updates).shape
    (4, ('weight',), torch.Size([4]), torch.Size([4, 4]))
    """

    def __init__(self, leaves: Mapping[str, Leaf], losses: Tensor) -> None:
        self.leaves = dict(leaves)
        self.losses = losses
        """The per-sample losses, detached, (B,)."""

    def __len__(self) -> int:
        return len(self.losses)

    @property
    def names(self) -> tuple[str, ...]:
        """Parameter names, in the order of `model.named_parameters()`."""
        return tuple(self.leaves)

    def norms(self) -> Tensor:
        """Each sample's norm over all parameters, float64, (B,)."""
        return self.norms_by_parameter().square().sum(1).sqrt()

    def norms_by_parameter(self) -> Tensor:
        """Each sample's norm for each parameter, float64, (B, number of parameters)."""
        if not self.leaves:
            return self.losses.new_zeros(len(self), 0, dtype=torch.float64)
        return torch.stack([leaf.square_norms() for leaf in self.leaves.values()], 1).sqrt_()

    def ceilings_by_parameter(self) -> Tensor:
        """At least each sample's norm for each parameter as if no term cancelled another, float64."""
        if not self.leaves:
            return self.losses.new_zeros(len(self), 0, dtype=torch.float64)
        return torch.stack([leaf.square_ceilings() for leaf in self.leaves.values()], 1).sqrt_()

    def gram(self, other: Updates) -> Tensor:
        """Inner products of every sample here with every sample of `other`, (B, B')."""
        if other.names != self.names:
            raise ValueError(f"gram needs updates of the same parameters; here {self.names}, there {other.names}")
        total = self.losses.new_zeros(len(self), len(other))
        for name, leaf in self.leaves.items():
            total += leaf.gram(other.leaves[name])
        return total

    def weighted_sum(self, weights: Tensor) -> dict[str, Tensor]:
        """`sum_i w_i g_i` by parameter name.

        `weights` is (B,), or (B, number of parameters) with a column for each name. A sample of weight
        zero is left out altogether, so that a non-finite update of weight zero adds nothing.
        """
        allowed = ((len(self),), (len(self), len(self.leaves)))
        if tuple(weights.shape) not in allowed:
            raise ValueError(f"weights of shape {tuple(weights.shape)}: give {allowed[0]} or {allowed[1]}")
        table = weights[:, None] if weights.dim() == 1 else weights
        # below its smallest normal number a format rounds by whole factors: such weights are zero
        table = torch.where(table.abs() < torch.finfo(self.losses.dtype).tiny, 0, table)
        sums = {}
        for column, (name, leaf) in enumerate(self.leaves.items()):
            weight = table[:, column if weights.dim() == 2 else 0].to(leaf.like.dtype)
            total = leaf.weighted_sum(weight)
            if not bool(torch.isfinite(total.sum())) and weight.numel():
                # zero times a non-finite update is not zero, or a product left the range of the format on the way
                used = (table != 0).any(1).nonzero().squeeze(1)
                total = leaf.select(used).double().weighted_sum(weight[used].double()).to(total.dtype)
            sums[name] = total
        return sums

    def perturbed(self, deviation: float, normal: Callable[[int], Tensor]) -> Updates:
        """Every coordinate of every sample with independent noise added; written out, so for few coordinates."""
        leaves: dict[str, Leaf] = {}
        for name, leaf in self.leaves.items():
            values = leaf.dense()
            drawn = normal(values.numel()).to(values.device).mul_(deviation)
            noisy = Dense(values + drawn.reshape(values.shape).to(values.dtype))
            leaves[name] = Masked(noisy, leaf.mask) if isinstance(leaf, Masked) else noisy
        return Updates(leaves, self.losses)

    def dense(self) -> Tensor:
        """The (B, p) matrix; columns as in `model.named_parameters()`. For tests and small problems."""
        if not self.leaves:
            return self.losses.new_zeros(len(self), 0)
        return torch.cat([leaf.dense().reshape(len(self), leaf.shape.numel()) for leaf in self.leaves.values()], 1)

    def select(self, index: Tensor) -> Updates:
        """The updates of the samples `index` alone."""
        return Updates({name: leaf.select(index) for name, leaf in self.leaves.items()}, self.losses[index])

    def __repr__(self) -> str:
        forms = ", ".join(f"{name}: {type(leaf).__name__}" for name, leaf in self.leaves.items())
        return f"Updates of {len(self)} samples ({forms})"
