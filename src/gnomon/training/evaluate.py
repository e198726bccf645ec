"""Loss and accuracy of a model on held-out records."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from gnomon.data import Loader
from gnomon.updates import Loss, per_sample
from gnomon.updates.gradients import batch_size as count
from gnomon.updates.losses import checked
from gnomon.updates.snapshot import untouched
from gnomon.updates.trees import call

COMPARED = 20_000
"""Up to how many validation and training records are compared by content."""


@torch.no_grad()
def evaluate(model: nn.Module, loss: Loss, data: Any, batch_size: int = 500) -> dict[str, float]:
    """Mean loss, and accuracy where outputs are class scores for whole-number targets.

    The model is in evaluation mode meanwhile and in its own again afterwards. A criterion of torch that reduces over
    the batch is converted, as the Trainer does it.

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
            total += float(checked(loss(outputs, targets), count(inputs)).double().sum())
            scored = scored and _are_scores(outputs, targets)
            if scored:
                best = outputs.argmax(1) if outputs.shape[1] > 1 else outputs[:, 0] > 0  # one score: its sign
                right += int((best == targets).sum())
    found = {"loss": total / len(loader)}
    if scored:
        found["accuracy"] = right / len(loader)
    return found


def of_members(validation: Any, train: Any) -> bool:
    """Whether the validation records are training records: the same memory, or all of them with the same content.

    Equal content shows it only where it can hardly be chance: of a few features many people have the same values. So
    most of the training records that are met must occur once. More than `COMPARED` records are not compared.

    >>> x, y = torch.randn(9, 2), torch.zeros(9)
    >>> of_members((x[3:5].clone(), y[3:5]), (x, y)), of_members((x + 1, y), (x, y))
    (True, False)
    """
    if validation is train:
        return True
    ours, theirs = Loader(validation, "validation"), Loader(train, "train")
    if _shared(validation, train):
        return True
    if not (ours.in_memory and theirs.in_memory) or max(len(ours), len(theirs)) > COMPARED:
        return False
    sparse = ours.sparse or theirs.sparse
    times = Counter(theirs.marks(sparse=sparse))
    met = [times[mark] for mark in ours.marks(sparse=sparse)]
    return all(met) and 2 * met.count(1) > len(met)


def _shared(validation: Any, train: Any) -> bool:
    """Whether inputs are partly the same memory; of every other row of a tensor this cannot be told."""
    one, other = (_inputs(data) for data in (validation, train))
    if one is None or other is None or one.device != other.device:
        return False
    (start, end), (begin, stop) = ((t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in (one, other))
    return start < stop and begin < end


def _inputs(data: Any) -> Tensor | None:
    """The inputs as one block of memory, if they are one."""
    found = data[0] if isinstance(data, tuple | list) and len(data) else getattr(data, "inputs", None)
    whole = isinstance(found, Tensor) and found.layout is torch.strided and found.is_contiguous() and found.numel() > 0
    return found if whole else None


def _are_scores(outputs: Any, targets: Any) -> bool:
    return (
        isinstance(outputs, Tensor)
        and isinstance(targets, Tensor)
        and outputs.dim() == 2
        and targets.dim() == 1
        and not targets.is_floating_point()
    )
