"""The updates of all samples for a whole model: one leaf per parameter, and the operations on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from operator import is_

import torch
from torch import Tensor

from gnomon.errors import SettingError
from gnomon.updates.leaves import Dense, Leaf, Masked
from gnomon.updates.leaves.leaf import joined
from gnomon.validate import whole


class Updates:
    """The updates of all samples of a batch, for every trainable parameter of a model.

    Operations visit one leaf at a time, so that none but `dense` allocates a samples x parameters matrix.

    Args:
        leaves: the leaves by parameter name, in the order of `model.named_parameters()`.
        losses: the per-sample losses, detached, (B,).

    >>> from torch import nn
    >>> from gnomon.updates import gradients
    >>> model = nn.Linear(2, 1, bias=False)
    >>> loss = lambda outputs, targets: ((outputs - targets) ** 2).sum(1)
    >>> updates = gradients(model, loss, torch.randn(4, 2), torch.randn(4, 1))
    >>> len(updates), updates.names, updates.norms().shape, updates.gram(updates).shape
    (4, ('weight',), torch.Size([4]), torch.Size([4, 4]))
    """

    def __init__(self, leaves: Mapping[str, Leaf], losses: Tensor) -> None:
        self._leaves = dict(leaves)
        self.losses = losses

    @property
    def leaves(self) -> dict[str, Leaf]:
        """The leaves by parameter name."""
        return self._leaves

    def __len__(self) -> int:
        return self.losses.shape[0]  # len() of a tensor takes longer

    @property
    def names(self) -> tuple[str, ...]:
        """Parameter names, in the order of `model.named_parameters()`."""
        return tuple(self.leaves)

    def norms(self) -> Tensor:
        """Return the norm of each sample's update over all parameters, float64, (B,)."""
        return self.norms_by_parameter().square().sum(1).sqrt()

    def norms_by_parameter(self) -> Tensor:
        """Return the norm of each sample's update for each parameter, float64, (B, number of parameters)."""
        if not self.leaves:
            return self.losses.new_zeros(len(self), 0, dtype=torch.float64)
        return torch.stack([leaf.square_norms() for leaf in self.leaves.values()], 1).sqrt_()

    def ceilings_by_parameter(self) -> Tensor:
        """Return an upper bound on each norm of `norms_by_parameter` if no terms cancelled, of the same shape.

        Where it is far above the norm, sums carry rounding errors that the norm does not show.
        """
        if not self.leaves:
            return self.losses.new_zeros(len(self), 0, dtype=torch.float64)
        return torch.stack([leaf.square_ceilings() for leaf in self.leaves.values()], 1).sqrt_()

    def norms_and_ceilings(self) -> tuple[Tensor, Tensor]:
        """Return `norms_by_parameter` and `ceilings_by_parameter`, as one tensor where no leaf distinguishes them."""
        if not self.leaves:
            return self.norms_by_parameter(), self.ceilings_by_parameter()
        leaves = self.leaves.values()
        squares, ceilings = [leaf.square_norms() for leaf in leaves], [leaf.square_ceilings() for leaf in leaves]
        norms = torch.stack(squares, 1).sqrt_()
        return norms, norms if all(map(is_, squares, ceilings)) else torch.stack(ceilings, 1).sqrt_()

    def gram(self, other: Updates) -> Tensor:
        """Return the inner products of every sample with every sample of `other`, (B, B').

        Raises:
            SettingError: the updates have different parameters.
        """
        if other.names != self.names:
            raise SettingError("other", other.names, f"updates of the parameters {self.names}")
        total = self.losses.new_zeros(len(self), len(other))
        for name, leaf in self.leaves.items():
            total += leaf.gram(other.leaves[name])
        return total

    def weighted_sum(self, weights: Tensor) -> dict[str, Tensor]:
        """Return `sum_i w_i g_i` by parameter name.

        Guarantee: a sample of weight zero adds nothing, even if its update is not finite.

        Args:
            weights: one weight per sample, (B,), or one per sample and parameter, (B, number of parameters).

        Raises:
            SettingError: the weights have another shape.
        """
        shapes = ((len(self),), (len(self), len(self.leaves)))
        if tuple(weights.shape) not in shapes:
            raise SettingError("weights.shape", tuple(weights.shape), f"{shapes[0]} or {shapes[1]}")
        # subnormal numbers have relative rounding errors of any size, so subnormal weights count as zero
        table = torch.where(weights.abs() < torch.finfo(self.losses.dtype).tiny, 0, weights)
        shared: dict[torch.dtype, Tensor] = {}
        sums = {}
        for column, (name, leaf) in enumerate(self.leaves.items()):
            dtype = leaf.like.dtype
            if table.dim() == 1 and dtype not in shared:
                shared[dtype] = table.to(dtype)
            weight = shared[dtype] if table.dim() == 1 else table[:, column].to(dtype)
            total = leaf.weighted_sum(weight)
            if not math.isfinite(float(total.sum())) and weight.numel():
                # zero times a non-finite update is NaN, or an intermediate product overflowed
                used = (table != 0 if table.dim() == 1 else (table != 0).any(1)).nonzero().squeeze(1)
                total = leaf.select(used).double().weighted_sum(weight[used].double()).to(total.dtype)
            sums[name] = total
        return sums

    def perturbed(self, deviation: float, normal: Callable[[int], Tensor]) -> Updates:
        """Return the updates with independent noise of this standard deviation added to every coordinate.

        The result is dense, so its size is samples x coordinates.

        Args:
            deviation: the standard deviation.
            normal: draws the given number of standard normal numbers.
        """
        leaves: dict[str, Leaf] = {}
        for name, leaf in self.leaves.items():
            values = leaf.dense()
            drawn = normal(values.numel()).to(values.device).mul_(deviation)
            noisy = Dense(values + drawn.reshape(values.shape).to(values.dtype))
            leaves[name] = Masked(noisy, leaf.mask) if isinstance(leaf, Masked) else noisy
        return Updates(leaves, self.losses)

    def dense(self) -> Tensor:
        """Return the (B, p) matrix, with columns in the order of `model.named_parameters()`; for small problems."""
        if not self.leaves:
            return self.losses.new_zeros(len(self), 0)
        return torch.cat([leaf.dense().reshape(len(self), leaf.shape.numel()) for leaf in self.leaves.values()], 1)

    def select(self, index: Tensor) -> Updates:
        """Return the updates of the samples `index`."""
        return Updates({name: leaf.select(index) for name, leaf in self.leaves.items()}, self.losses[index])

    def merged(self, views: int) -> Updates:
        """Return the updates of records of which each has `views` consecutive samples: the means of their updates.

        Losses are averaged too. No per-sample update is written out: factored leaves become leaves with more factors.

        Args:
            views: the number of samples of each record.

        Raises:
            SettingError: the number of samples is no multiple of `views`.

        >>> updates = Updates({"weight": Dense(torch.tensor([[1.0], [3.0], [5.0], [5.0]]))}, torch.zeros(4))
        >>> updates.merged(2).dense()
        tensor([[2.],
                [5.]])
        """
        check_views(views, len(self))
        if views == 1:
            return self
        merged = {name: leaf.merged(views) for name, leaf in self.leaves.items()}
        return Updates(merged, mean_of_views(self.losses, views))

    def __repr__(self) -> str:
        forms = ", ".join(f"{name}: {type(leaf).__name__}" for name, leaf in self.leaves.items())
        return f"Updates of {len(self)} samples ({forms})"


def check_views(views: int, samples: int) -> None:
    """Raise SettingError unless samples can be divided into records of `views` samples each.

    >>> check_views(2, 5)
    Traceback (most recent call last):
    gnomon.errors.SettingError: views = 2 is invalid; expected a divisor of the number of samples, 5
    """
    if samples % whole("views", views):
        raise SettingError("views", views, f"a divisor of the number of samples, {samples}")


def mean_of_views(values: Tensor, views: int) -> Tensor:
    """Return the mean over the consecutive views of each record, (records, ...); with one view, the values themselves.

    >>> mean_of_views(torch.tensor([1.0, 3.0, 5.0, 5.0]), 2)
    tensor([2., 5.])
    """
    return values if views == 1 else joined(values, views).mean(1)
