"""Training on public records alone: the baseline at epsilon = 0, or a warm start."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gnomon import validate
from gnomon.data import Loader
from gnomon.updates import Loss, per_sample
from gnomon.updates.trees import call, explained_forward


def train_on_public(model: nn.Module, loss: Loss, public: Any, *, steps: int = 200, lr: float = 1e-3) -> None:
    """Train on public records alone, with full-batch Adam. No private record is read.

    The result is the public-only baseline, or the warm start of a private run.

    Args:
        model: the model to train in place.
        loss: maps (outputs, targets) to one number per sample.
        public: the public records.
        steps: the number of full-batch steps.
        lr: the learning rate.

    >>> model = nn.Linear(1, 2)
    >>> x = torch.tensor([[-1.0], [1.0]])
    >>> train_on_public(model, nn.CrossEntropyLoss(reduction="none"), (x, torch.tensor([0, 1])), lr=0.1)
    >>> model(x).argmax(1)
    tensor([0, 1])
    """
    validate.whole("steps", steps)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trainable, lr=validate.positive("lr", lr))
    loader = Loader(public, "public", trainable[0].device)
    inputs, targets = loader.take(torch.arange(len(loader)))
    criterion = per_sample(loss)
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        with explained_forward(model, inputs):
            outputs = call(model, inputs)
        criterion(outputs, targets).mean().backward()
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
