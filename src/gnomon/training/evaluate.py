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

    With two classes, the area under the ROC curve is returned as `auc`: the probability that a record of class 1 has
    the higher score, which does not depend on how rare the class is.

    The model is evaluated in evaluation mode and then returned to its previous mode. A criterion of torch that reduces
    over the batch is converted to one value per sample, as in the Trainer.

    Args:
        model: the model.
        loss: maps (outputs, targets) to one number per sample.
        data: the records: (inputs, targets) tensors, Records, or a torch Dataset of pairs.
        batch_size: the number of records in one forward pass.

    >>> model = nn.Identity()
    >>> loss = nn.CrossEntropyLoss(reduction="none")
    >>> scores = evaluate(model, loss, (torch.eye(2) * 9, torch.tensor([0, 1])))
    >>> scores["accuracy"], scores["auc"]
    (1.0, 1.0)
    """
    device = next((p.device for p in model.parameters()), None)
    loader, loss = Loader(data, "validation", device), per_sample(loss)
    total, right, scored = 0.0, 0, True
    margins: list[Tensor] = []
    labels: list[Tensor] = []
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
                if outputs.shape[1] <= 2:
                    margins.append(outputs[:, -1] - outputs[:, 0] if outputs.shape[1] == 2 else outputs[:, 0])
                    labels.append(targets)
    scores = {"loss": total / len(loader)}
    if scored:
        scores["accuracy"] = right / len(loader)
    if scored and margins and (area := area_under_curve(torch.cat(margins), torch.cat(labels))) is not None:
        scores["auc"] = area
    return scores


def area_under_curve(margins: Tensor, labels: Tensor) -> float | None:
    """Return the area under the ROC curve of scores for labels 0 and 1; ties count one half.

    Returns:
        The area, or None if a score is not finite, if there are other labels, or if a class is missing.

    >>> area_under_curve(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1]))
    0.75
    """
    positive = labels == 1
    ones, zeros = int(positive.sum()), int((labels == 0).sum())
    if not ones or not zeros or ones + zeros < len(labels) or not margins.isfinite().all():
        return None
    _, place, copies = margins.double().unique(return_inverse=True, return_counts=True)
    ranks = copies.cumsum(0) - (copies - 1) / 2  # the mean rank of each distinct score, from 1
    return float((ranks[place][positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def _are_scores(outputs: Any, targets: Any) -> bool:
    return (
        isinstance(outputs, Tensor)
        and isinstance(targets, Tensor)
        and outputs.dim() == 2
        and targets.dim() == 1
        and not targets.is_floating_point()
    )
