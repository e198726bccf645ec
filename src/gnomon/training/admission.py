"""Admission of records to training: models and records that cannot be private are refused before any release."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gnomon.accounting import Sampling
from gnomon.data import FingerprintCache, Loader
from gnomon.data.loader import RecordTypeError
from gnomon.errors import DataError, StateError
from gnomon.ledger.session import LedgerSession
from gnomon.memory import return_freed_memory
from gnomon.methods import Method
from gnomon.methods.method import at_step
from gnomon.release import SecureNoise
from gnomon.sampling.draws import check_size, shuffle
from gnomon.training.checks.independence import FEW, CoordinateMap, enough, few, refuse_dependence, refuse_padding
from gnomon.training.checks.model import check_model, refuse_overlap
from gnomon.updates import Layouts, Loss
from gnomon.updates.snapshot import untouched
from gnomon.updates.trees import ModelInputError, batch_size, take_rows, tensors


class _Checked(NamedTuple):
    """The subject of a check: method, loss, modules of the model, and which modules were in training mode."""

    method: Method
    loss: Loss
    modules: tuple[nn.Module, ...]
    modes: tuple[bool, ...]

    def same(self, other: _Checked) -> bool:
        """Return whether a check of this is also a check of the other."""
        return self.method is other.method and self._otherwise_same(other) and self.modes == other.modes

    def exchanged(self, other: _Checked) -> str | None:
        """Return the part of the other that no check has covered and that could mix samples, or None."""
        if self.method is not other.method and not _alike(self.method.update, other.method.update):
            return f"the update of method '{other.method.name}'"
        if other.method.public is not None and other.method.public is not self.method.public:
            return f"the public records of method '{other.method.name}'"
        if self.loss is not other.loss:
            return "the loss"
        return None if self._otherwise_same(other) else "a module of the model"

    def _otherwise_same(self, other: _Checked) -> bool:
        if self.loss is not other.loss or len(self.modules) != len(other.modules):
            return False
        return all(one is two for one, two in zip(self.modules, other.modules, strict=True))


def _alike(one: Any, two: Any) -> bool:
    """Return whether two updates, or two of their settings, run the same code, possibly with other numbers."""
    if type(one) is not type(two):
        return False
    if isinstance(one, bool | int | float | str | Tensor | nn.Module):
        return True
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
        return all(_alike(getattr(one, name), getattr(two, name)) for name in names)
    return bool(one == two)


class Admission:
    """Checks a model together with its records, once per method and loss, and identifies the records to the ledger.

    Args:
        model: the model.
        sampler: the declared sampling scheme.
        ledger_session: the session that the records are entered in.
        leave_out: records that are drawn and count for nothing; `left_out` is their number among the admitted ones.
        example: made-up records to check the model with instead of private ones, if they are sufficient.
        coordinates: returns the map to the coordinates in which a method clips, or None.
        layouts: a cache of model layouts.

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
        coordinates: Callable[[Method], CoordinateMap | None] = lambda method: None,
        layouts: Layouts | None = None,
    ) -> None:
        self.model, self.sampler, self.ledger_session = model, sampler, ledger_session
        self.coordinates = coordinates
        self.layouts = layouts or Layouts()
        self.leave_out, self.left_out = leave_out, 0
        self.example = example
        self.fingerprint_cache = FingerprintCache()
        """Fingerprints of the training records, shared by the checks that need them as long as no byte changes."""
        self._checked: _Checked | None = None
        self._admitted: _Checked | None = None
        self._shapes = set() if example is None else {_shape(example)}
        self._collated = False
        """Whether a batch with another shape than the records and the example has been checked."""

    def check(self, method: Method, loss: Loss, inputs: Any, targets: Any, name: str = "example") -> None:
        """Refuse a model or loss that mixes samples, as far as these records show it, or that does not accept them."""
        try:
            refuse_dependence(
                self.model,
                _naming(loss, name),
                at_step(method.update_with(self.layouts), 0),
                inputs,
                targets,
                rule=method.clip_rule,
                coordinates=self.coordinates(method),
            )
        except ModelInputError as error:
            raise ModelInputError(f"{name} and model do not fit together: {error}") from error
        finally:
            return_freed_memory()
        if enough(inputs, targets):
            self._checked = self._now(method, loss)

    def admit(self, train: Any, method: Method, loss: Loss) -> Loader:
        """Return the records that training may draw.

        Raises:
            NotPrivate: the model mixes samples.
            SettingError: the records do not fit the sampling scheme, or public records are among them.
            LedgerError: the budget of the data set cannot pay for the run.
        """
        check_model(self.model)
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
        """Check a batch that the caller may have collated, once per shape of its records.

        An example shows neither the contents of a collated batch nor that its length follows the longest record.
        """
        shape = _shape((inputs, targets))
        if shape in self._shapes or batch_size(inputs) < 2:
            return
        with untouched(self.model, parameters=True, loss=loss):  # so that no cache stays filled from records of a step
            if not self._collated:
                some = take_rows((inputs, targets), slice(FEW))
                self.check(method, loss, some[0], some[1], name="batch")
                self._collated = True
            refuse_padding(self.model, loss, at_step(method.update_with(self.layouts), 0), inputs, targets)
        self._shapes.add(shape)

    def refuse_exchanged(self, method: Method, loss: Loss) -> None:
        """Refuse a method, loss or module that was replaced since the records were admitted."""
        now = self._now(method, loss)
        if self._admitted is not None and (what := self._admitted.exchanged(now)):
            raise StateError(
                f"{what} was replaced since the records were admitted, and the new one has not been checked with them: "
                "call batches(train) or fit(train) again"
            )

    def _now(self, method: Method, loss: Loss) -> _Checked:
        modules = tuple(self.model.modules())
        training = self.model.training  # otherwise training starts by putting all modules into training mode
        return _Checked(method, loss, modules, tuple(one.training or not training for one in modules))

    def _some(self, loader: Loader) -> tuple[Any, Any]:
        """Return a few records for the check: the example if it is sufficient, else private records."""
        if self.example is not None and enough(*self.example):
            return self.example
        return few(loader, shuffle(len(loader), SecureNoise()))  # does not advance a seeded source


def _shape(tree: Any) -> tuple[Any, ...]:
    """Return the shapes and types of the tensors of one record."""
    return tuple((t.shape[1:], t.dtype) for t in tensors(tree))


def _naming(loss: Loss, name: str) -> Loss:
    """Return the loss with errors that name the targets, if their type or range is the cause."""

    def takes_whole(outputs: Any, targets: Any) -> bool:
        try:
            loss(outputs, pytree.tree_map_only(Tensor, Tensor.long, targets))
        except Exception:  # the type of the targets is not the cause
            return False
        return True

    def named(outputs: Any, targets: Any) -> Tensor:
        try:
            return loss(outputs, targets)
        except IndexError as error:
            scored = isinstance(outputs, Tensor) and outputs.dim() > 1
            scores = f"{outputs.shape[1]} scores per record" if scored else "scores"
            problem = f"fails on the targets of {name}, because the model gives {scores} and a target lies outside them"
            raise DataError("the loss", problem, "use a model with as many outputs as there are classes") from error
        except RuntimeError as error:
            kinds = [str(t.dtype).removeprefix("torch.") for t in tensors(targets) if t.dtype is not torch.int64]
            if not kinds or not takes_whole(outputs, targets):
                raise
            problem = f"fails on the targets of {name}, which have type {kinds[0]}"
            raise RecordTypeError("the loss", problem, "if they are classes, pass targets.long()") from error

    setattr(named, "__wrapped__", loss)  # noqa: B010 - names of what the loss keeps begin at the loss itself
    return named
