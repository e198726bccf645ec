"""Training on public records alone: the baseline at epsilon = 0, or a warm start."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gnomon import validate
from gnomon.data import Loader
from gnomon.errors import DataError
from gnomon.updates import Loss, per_sample
from gnomon.updates.trees import call, explained_forward

Augment = Callable[[Any, Any, torch.Generator], tuple[Any, Any]]
"""(inputs, targets, generator) -> the inputs and targets of one step, drawn with the generator."""

SMALL_MODEL = 100_000
"""The largest number of trainable parameters for which L-BFGS is the default."""


class PublicSolver(ABC):
    """Minimises a full-batch objective over public records."""

    @abstractmethod
    def minimise(self, objective: Callable[[], Tensor], parameters: Sequence[nn.Parameter]) -> int:
        """Change the parameters in place and return the number of evaluations of the objective.

        Args:
            objective: returns the objective at the present parameters, with a graph to differentiate.
            parameters: the trainable parameters.
        """


@dataclass(frozen=True)
class FullBatchLBFGS(PublicSolver):
    """L-BFGS with a strong Wolfe line search, until the gradient vanishes. It needs a deterministic objective.

    Args:
        max_iterations: the largest number of iterations.
        tolerance: the largest absolute entry of the gradient at which it stops.

    >>> weight = nn.Parameter(torch.zeros(1))
    >>> evaluations = FullBatchLBFGS().minimise(lambda: (weight - 3).square().sum(), [weight])
    >>> round(float(weight.detach()), 4)
    3.0
    """

    max_iterations: int = 300
    tolerance: float = 1e-5

    def __post_init__(self) -> None:
        validate.whole("max_iterations", self.max_iterations)
        validate.positive("tolerance", self.tolerance)

    def minimise(self, objective: Callable[[], Tensor], parameters: Sequence[nn.Parameter]) -> int:
        optimizer = torch.optim.LBFGS(
            parameters,
            max_iter=self.max_iterations,
            max_eval=2 * self.max_iterations,
            tolerance_grad=self.tolerance,
            tolerance_change=1e-9,
            history_size=20,
            line_search_fn="strong_wolfe",
        )
        evaluations = 0

        def closure() -> float:
            nonlocal evaluations
            evaluations += 1
            optimizer.zero_grad(set_to_none=True)
            value = objective()
            value.backward()
            return value.item()

        optimizer.step(closure)
        optimizer.zero_grad(set_to_none=True)
        return evaluations


@dataclass(frozen=True)
class FullBatchAdam(PublicSolver):
    """Adam on all records at once, until the objective stops falling.

    Args:
        max_steps: the largest number of steps.
        lr: the learning rate.
        patience: the number of steps after which the objective must have fallen.
        tolerance: the fraction of its value by which the objective must have fallen in `patience` steps.

    >>> weight = nn.Parameter(torch.zeros(1))
    >>> steps = FullBatchAdam(lr=0.1).minimise(lambda: (weight - 3).square().sum() + 1, [weight])
    >>> round(float(weight.detach()), 2), steps < 500
    (3.0, True)
    """

    max_steps: int = 2000
    lr: float = 1e-3
    patience: int = 100
    tolerance: float = 0.01

    def __post_init__(self) -> None:
        validate.whole("max_steps", self.max_steps)
        validate.positive("lr", self.lr)
        validate.whole("patience", self.patience)
        validate.non_negative("tolerance", self.tolerance)

    def minimise(self, objective: Callable[[], Tensor], parameters: Sequence[nn.Parameter]) -> int:
        optimizer = torch.optim.Adam(parameters, lr=self.lr)
        least, since = math.inf, 0
        for step in range(1, self.max_steps + 1):
            optimizer.zero_grad(set_to_none=True)
            value = objective()
            value.backward()
            optimizer.step()
            if value.item() < (1 - self.tolerance) * least:
                least, since = value.item(), step
            elif step - since >= self.patience:
                break
        optimizer.zero_grad(set_to_none=True)
        return step


def train_on_public(
    model: nn.Module,
    loss: Loss,
    public: Any,
    *,
    weight_decay: float = 1e-3,
    solver: PublicSolver | None = None,
    augment: Augment | None = None,
    seed: int = 0,
) -> None:
    """Train on public records alone, to convergence. No private record is read.

    The result is the public-only baseline, or the warm start of a private run. The objective is the mean loss of all
    public records plus `weight_decay / 2` times the squared length of the trainable parameters. The result depends on
    the model, the records and the seed alone; the state of torch's global generator is left unchanged.

    Args:
        model: the model to train in place.
        loss: maps (outputs, targets) to one number per sample.
        public: the public records.
        weight_decay: the strength of the squared penalty. Without any, separable records have no optimum.
        solver: `FullBatchLBFGS(...)` or `FullBatchAdam(...)`. By default L-BFGS for models of at most 100,000
            parameters without random layers and without augmentation, and Adam for all others.
        augment: draws the records of each step from the public records, for example shifted images.
        seed: the seed of the augmentation and of random layers such as dropout.

    Raises:
        DataError: the loss of the public records is not finite.

    >>> model = nn.Linear(1, 2)
    >>> x = torch.tensor([[-1.0], [1.0]])
    >>> train_on_public(model, nn.CrossEntropyLoss(reduction="none"), (x, torch.tensor([0, 1])))
    >>> model(x).argmax(1)
    tensor([0, 1])
    """
    penalty = validate.non_negative("weight_decay", weight_decay) / 2
    trainable = [p for p in model.parameters() if p.requires_grad]
    device = trainable[0].device
    loader = Loader(public, "public", device)
    inputs, targets = loader.take(torch.arange(len(loader)))
    criterion = per_sample(loss)
    generator = torch.Generator().manual_seed(validate.whole("seed", seed, least=0))

    def objective() -> Tensor:
        x, y = (inputs, targets) if augment is None else augment(inputs, targets, generator)
        with explained_forward(model, x):
            outputs = call(model, x)
        mean = criterion(outputs, y).mean()
        return mean + penalty * sum(p.square().sum() for p in trainable) if penalty else mean

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.random.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        with torch.no_grad():
            first, second = float(objective()), float(objective())
        if not math.isfinite(first):
            raise DataError("the public records", f"have a mean loss of {first}", "remove records that are not finite")
        if solver is None:
            solver = _default_solver(trainable, random=augment is not None or first != second)
        start = [p.detach().clone() for p in trainable]
        solver.minimise(objective, trainable)
        if not all(bool(p.isfinite().all()) for p in trainable):  # a line search can leave the domain of the loss
            with torch.no_grad():
                for parameter, value in zip(trainable, start, strict=True):
                    parameter.copy_(value)
            FullBatchAdam().minimise(objective, trainable)


def _default_solver(trainable: Sequence[nn.Parameter], *, random: bool) -> PublicSolver:
    """Return L-BFGS for a small deterministic problem, and Adam for any other."""
    kinds = {(p.device, p.dtype) for p in trainable}
    small = sum(p.numel() for p in trainable) <= SMALL_MODEL
    return FullBatchLBFGS() if small and not random and len(kinds) == 1 else FullBatchAdam()
