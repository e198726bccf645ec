"""The way of records into training: what could not be private is refused before anything is released."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gnomon.accounting import Sampling
from gnomon.data import Loader
from gnomon.data.sampling import check_size, shuffle
from gnomon.ledger.spending import Spending
from gnomon.methods import Method
from gnomon.release import SecureNoise
from gnomon.training.independence import enough, few, refuse_dependence
from gnomon.training.refusals import refuse_overlap
from gnomon.updates import Loss
from gnomon.updates.forward import DoesNotFit
from gnomon.updates.trees import tensors


class Entrance:
    """Checks a model and its records together, once for each method and loss, and names the records to the ledger.

    Records that also occur in `leave_out` count for nothing; `left_out` says how many there were. An `example` stands
    for the records in the check of the model where it shows enough.

    >>> from gnomon.accounting import Account, FullBatch
    >>> from gnomon.methods import dp_sgd
    >>> spending = Spending(None, Account(FullBatch(), 1.0), 1)
    >>> model, loss = nn.Linear(1, 2), nn.CrossEntropyLoss(reduction="none")
    >>> inputs, targets = torch.arange(4.0).view(4, 1), torch.tensor([0, 0, 1, 1])
    >>> entrance = Entrance(model, FullBatch(), spending, leave_out=(inputs[:1], targets[:1]))
    >>> len(entrance.admit((inputs, targets), dp_sgd(), loss)), entrance.left_out
    (4, 1)
    """

    def __init__(
        self,
        model: nn.Module,
        sampler: Sampling,
        spending: Spending,
        *,
        leave_out: Any = None,
        example: tuple[Any, Any] | None = None,
    ) -> None:
        self.model, self.sampler, self.spending = model, sampler, spending
        self.leave_out, self.left_out = leave_out, 0
        self.example = example
        self._checked: tuple[Method, Loss] | None = None

    def check(self, method: Method, loss: Loss, inputs: Any, targets: Any, name: str = "example") -> None:
        """Refuses a model or a loss that mixes samples, as far as these records show it, or that cannot take them."""
        try:
            refuse_dependence(self.model, _naming(loss, name), method.update, inputs, targets)
        except DoesNotFit as error:
            raise DoesNotFit(f"{name} and model do not go together: {error}") from error
        if enough(inputs, targets):
            self._checked = method, loss

    def admit(self, train: Any, method: Method, loss: Loss) -> Loader:
        """The records that training may draw."""
        device = next(p.device for p in self.model.parameters() if p.requires_grad)
        loader = Loader(train, "train", device)
        check_size(self.sampler, len(loader))
        if self._checked is None or self._checked[0] is not method or self._checked[1] is not loss:
            self.check(method, loss, *self._some(loader), name="train")
        used = loader if self.leave_out is None else loader.without(Loader(self.leave_out, "leave_out"))
        self.left_out = used.left_out
        if method.public is not None:
            refuse_overlap(used, Loader(method.public, "public"))
        self.spending.admit(loader)
        return used

    def _some(self, loader: Loader) -> tuple[Any, Any]:
        """A few records to check: the example, unless it shows too little."""
        if self.example is not None and enough(*self.example):
            return self.example
        return few(loader, shuffle(len(loader), SecureNoise()))  # leaves a seeded source where it was


def _naming(loss: Loss, name: str) -> Loss:
    """The loss, with an error that names targets of a type that it may not take."""

    def named(outputs: Any, targets: Any) -> Tensor:
        try:
            return loss(outputs, targets)
        except RuntimeError as error:
            kinds = [str(t.dtype).removeprefix("torch.") for t in tensors(targets) if t.dtype is not torch.int64]
            if not kinds:
                raise
            raise TypeError(
                f"the loss fails on the targets of {name}, which have type {kinds[0]}: if they are classes, "
                "give targets.long()"
            ) from error

    return named
