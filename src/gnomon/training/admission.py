"""The way of records into training: what could not be private is refused before anything is released."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gnomon.accounting import Sampling
from gnomon.data import FingerprintCache, Loader
from gnomon.ledger.session import LedgerSession
from gnomon.methods import Method, Update
from gnomon.release import SecureNoise
from gnomon.sampling.draws import check_size, shuffle
from gnomon.training.checks.independence import FEW, Coordinates, enough, few, refuse_dependence, refuse_padding
from gnomon.training.checks.model import refuse_batch_norm, refuse_distributed, refuse_max_norm, refuse_overlap
from gnomon.updates import Loss
from gnomon.updates.forward import DoesNotFit
from gnomon.updates.gradients import batch_size
from gnomon.updates.snapshot import untouched
from gnomon.updates.trees import take_rows, tensors


class Seen(NamedTuple):
    """What a check was about: a method, a loss, the modules of the model, and which of them were in training mode."""

    method: Method
    loss: Loss
    modules: tuple[nn.Module, ...]
    modes: tuple[bool, ...]

    def same(self, other: Seen) -> bool:
        """Whether the check need not be made again."""
        return self.method is other.method and self._otherwise_same(other) and self.modes == other.modes

    def exchanged(self, other: Seen) -> str | None:
        """What is another one there and could mix samples, or know them; None where a check says as much as it did."""
        if self.method is not other.method and not _alike(self.method.update, other.method.update):
            return f"the update of method '{other.method.name}'"
        if other.method.public is not None and other.method.public is not self.method.public:
            return f"the public records of method '{other.method.name}'"
        if self.loss is not other.loss:
            return "the loss"
        return None if self._otherwise_same(other) else "a module of the model"

    def _otherwise_same(self, other: Seen) -> bool:
        if self.loss is not other.loss or len(self.modules) != len(other.modules):
            return False
        return all(one is two for one, two in zip(self.modules, other.modules, strict=True))


def _alike(one: Update, two: Update) -> bool:
    """Whether two updates are the same code, maybe with other numbers."""
    return one == two or (dataclasses.is_dataclass(one) and type(one) is type(two))


class Admission:
    """Checks a model and its records together, once for each method and loss, and names the records to the ledger.

    Records that also occur in `leave_out` count for nothing; `left_out` says how many there were. An `example` stands
    for the records in the check of the model where it shows enough.

    >>> from gnomon.accounting import Account, FullBatch
    >>> from gnomon.methods import dp_sgd
    >>> ledger_session = LedgerSession(None, Account(FullBatch(), 1.0), 1)
    >>> model, loss = nn.Linear(1, 2), nn.CrossEntropyLoss(reduction="none")
    >>> inputs, targets = torch.arange(4.0).view(4, 1), torch.tensor([0, 0, 1, 1])
    >>> admission = Admission(model, FullBatch(), ledger_session, leave_out=(inputs[:1], targets[:1]))
    >>> len(admission.admit((inputs, targets), dp_sgd(), loss)), admission.left_out
    (4, 1)
    """

    def __init__(
        self,
        model: nn.Module,
        sampler: Sampling,
        ledger_session: LedgerSession,
        *,
        leave_out: Any = None,
        example: tuple[Any, Any] | None = None,
        coordinates: Callable[[Method], Coordinates | None] = lambda method: None,
    ) -> None:
        self.model, self.sampler, self.ledger_session = model, sampler, ledger_session
        self.coordinates = coordinates
        self.leave_out, self.left_out = leave_out, 0
        self.example = example
        self.fingerprint_cache = FingerprintCache()
        """Fingerprints of the training records, shared by the checks that need them as long as no byte changes."""
        self._checked: Seen | None = None
        self._admitted: Seen | None = None
        self._shapes = set() if example is None else {_shape(example)}
        self._collated = False
        """Whether a batch of another shape than the records and the example has been checked."""

    def check(self, method: Method, loss: Loss, inputs: Any, targets: Any, name: str = "example") -> None:
        """Refuses a model or a loss that mixes samples, as far as these records show it, or that cannot take them."""
        try:
            refuse_dependence(
                self.model,
                _naming(loss, name),
                method.update,
                inputs,
                targets,
                rule=method.clip,
                coordinates=self.coordinates(method),
            )
        except DoesNotFit as error:
            raise DoesNotFit(f"{name} and model do not go together: {error}") from error
        if enough(inputs, targets):
            self._checked = self._now(method, loss)

    def admit(self, train: Any, method: Method, loss: Loss) -> Loader:
        """The records that training may draw."""
        refuse_distributed(self.model)
        refuse_batch_norm(self.model)
        refuse_max_norm(self.model)
        device = next(p.device for p in self.model.parameters() if p.requires_grad)
        loader = Loader(train, "train", device, cache=self.fingerprint_cache)
        check_size(self.sampler, len(loader))
        if self._checked is None or not self._checked.same(self._now(method, loss)):
            some = self._some(loader)
            self.check(method, loss, *some, name="train")
            if some is not self.example:
                self._shapes.add(_shape(some))
        used = loader if self.leave_out is None else loader.without(Loader(self.leave_out, "leave_out"))
        self.left_out = used.left_out
        if method.public is not None:
            refuse_overlap(used, Loader(method.public, "public"))
        self.ledger_session.admit(loader)
        self._admitted = self._now(method, loss)
        return used

    def check_collated(self, method: Method, loss: Loss, inputs: Any, targets: Any) -> None:
        """Checks a batch that the caller may have collated, once for each shape of its records.

        An example shows neither what a collated batch holds nor how its length follows its longest record.
        """
        shape = _shape((inputs, targets))
        if shape in self._shapes or batch_size(inputs) < 2:
            return
        with untouched(self.model, parameters=True, loss=loss):  # no cache stays filled from records of a step
            if not self._collated:
                some = take_rows((inputs, targets), slice(FEW))
                self.check(method, loss, some[0], some[1], name="batch")
                self._collated = True
            refuse_padding(self.model, loss, method.update, inputs, targets)
        self._shapes.add(shape)

    def refuse_exchanged(self, method: Method, loss: Loss) -> None:
        """Refuses what was put in the place of what was there when the records were admitted."""
        now = self._now(method, loss)
        if self._admitted is not None and (what := self._admitted.exchanged(now)):
            raise RuntimeError(
                f"{what} was exchanged since the records were handed over, and nobody has checked the new one with "
                "them: call batches(train) or fit(train) again"
            )

    def _now(self, method: Method, loss: Loss) -> Seen:
        modules = tuple(self.model.modules())
        training = self.model.training  # else training begins by putting all in training mode
        return Seen(method, loss, modules, tuple(one.training or not training for one in modules))

    def _some(self, loader: Loader) -> tuple[Any, Any]:
        """A few records to check: the example, unless it shows too little."""
        if self.example is not None and enough(*self.example):
            return self.example
        return few(loader, shuffle(len(loader), SecureNoise()))  # leaves a seeded source where it was


def _shape(tree: Any) -> tuple[Any, ...]:
    """The shapes and types of one record's tensors."""
    return tuple((t.shape[1:], t.dtype) for t in tensors(tree))


def _naming(loss: Loss, name: str) -> Loss:
    """The loss, with an error that names targets of a type that it does not take where it takes whole numbers."""

    def takes_whole(outputs: Any, targets: Any) -> bool:
        try:
            loss(outputs, pytree.tree_map_only(Tensor, Tensor.long, targets))
        except Exception:  # then the type is not what it fails on
            return False
        return True

    def named(outputs: Any, targets: Any) -> Tensor:
        try:
            return loss(outputs, targets)
        except IndexError as error:
            scores = f"{outputs.shape[1]} scores" if isinstance(outputs, Tensor) and outputs.dim() > 1 else "its scores"
            raise ValueError(
                f"the loss fails on the targets of {name}: the model gives {scores} a record, and a target lies "
                "outside them: give a model with as many outputs as there are classes"
            ) from error
        except RuntimeError as error:
            kinds = [str(t.dtype).removeprefix("torch.") for t in tensors(targets) if t.dtype is not torch.int64]
            if not kinds or not takes_whole(outputs, targets):
                raise
            raise TypeError(
                f"the loss fails on the targets of {name}, which have type {kinds[0]}: if they are classes, "
                "give targets.long()"
            ) from error

    setattr(named, "__wrapped__", loss)  # noqa: B010 - names of what the loss keeps begin at the loss itself
    return named
