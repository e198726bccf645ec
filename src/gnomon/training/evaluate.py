"""Evaluation of a model on held-out records."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gnomon.data import Loader
from gnomon.losses import check_per_sample
from gnomon.updates import Loss, per_sample
from gnomon.updates.snapshot import untouched
from gnomon.updates.trees import batch_size as count
from gnomon.updates.trees import call


@torch.no_grad()
def evaluate(model: nn.Module, loss: Loss, data: Any, batch_size: int = 500) -> dict[str, float]:
    """Return the mean loss, and the accuracy if outputs are class scores and targets are integers.

    The model is evaluated in evaluation mode and then returned to its previous mode. A criterion of torch that reduces
    over the batch is converted to one value per sample, as in the Trainer.

    Args:
        model: the model.
        loss: maps (outputs, targets) to one number per sample.
        data: the records: (inputs, targets) tensors, Records, or a torch Dataset of pairs.
        batch_size: the number of records in one forward pass.

    >>> model = nn.Identity()
    >>> loss = nn.CrossEntropyLoss(reduction="none")
    >>> evaluate(model, loss, (torch.eye(2) * 9, torch.tensor([0, 1])))["accuracy"]
    1.0
    """
    device = next((p.device for p in model.parameters()), None)
    loader, loss = Loader(data, "validation", device), per_sample(loss)
    total, right, scored = 0.0, 0, True
    with untouched(model):
        model.eval()
        for positions in torch.arange(len(loader)).split(batch_size):
            inputs, targets = loader.take(positions)
            outputs = call(model, inputs)
            total += float(check_per_sample(loss(outputs, targets), count(inputs)).double().sum())
            scored = scored and _are_scores(outputs, targets)
            if scored:
                best = outputs.argmax(1) if outputs.shape[1] > 1 else outputs[:, 0] > 0  # the sign of a single score
                right += int((best == targets).sum())
    scores = {"loss": total / len(loader)}
    if scored:
        scores["accuracy"] = right / len(loader)
    return scores


def _are_scores(outputs: Any, targets: Any) -> bool:
    return (
        isinstance(outputs, Tensor)
        and isinstance(targets, Tensor)
        and outputs.dim() == 2
        and targets.dim() == 1
        and not targets.is_floating_point()
    )
