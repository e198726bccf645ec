"""The private step: from the records of a logical batch to one noisy release, and from there to the model.

Everything that needs a private step uses this engine: the Trainer, diagnostics, the audit and federated clients.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, cast

from torch import Tensor, nn
from torch.optim import Optimizer

from gnomon.clipping import ClipRule
from gnomon.errors import StateError
from gnomon.memory import reuse_freed_memory
from gnomon.methods import Method, Update
from gnomon.methods.method import at_step
from gnomon.release import Admitted, Door, NoiseSource, SecureNoise, ordering
from gnomon.release.door import admission
from gnomon.subspaces import Basis, StepContext
from gnomon.training.checks.clip_rule import refuse_mixing_rule
from gnomon.training.checks.independence import CoordinateMap, refuse_touched
from gnomon.training.mechanism import Mechanism
from gnomon.training.metrics import Metrics, StepMetrics
from gnomon.training.observer import Observer, StepView
from gnomon.training.placement import Placed, multiple, place
from gnomon.updates import Layouts, Loss, Updates, per_sample
from gnomon.updates.exact import exact_products
from gnomon.updates.snapshot import Snapshot, untouched
from gnomon.updates.trees import take_rows

Function = TypeVar("Function", bound=Callable[..., Any])


class Release(NamedTuple):
    """The release of one step. All of it may be published.

    Attributes:
        coordinates: the noisy mean in the coordinates of the basis.
        extra: values released beside the update, by name, such as the mean loss.
        basis: the basis of the step, computed from public records and released weights.

    >>> from gnomon.sampling import Poisson
    >>> mechanism = Mechanism(Poisson(0.01), noise_multiplier=1.0, expected_batch_size=8, steps=100, delta=1e-5)
    >>> step = PrivateStep(nn.Linear(2, 2), nn.CrossEntropyLoss(reduction="none"), mechanism)
    >>> sorted(step.release().coordinates), step.metrics["unprotected/batch"]
    (['bias', 'weight'], 0)
    """

    coordinates: Mapping[str, Tensor]
    extra: Mapping[str, float]
    basis: Basis


@dataclass
class _OpenStep:
    """A logical step between its first physical batch and its release."""

    basis: Basis
    open_door: Callable[[], Door]
    snapshot: Snapshot
    metrics: StepMetrics
    batches: int = field(default=0)

    @functools.cached_property
    def door(self) -> Door:
        """The door, opened after the first coordinates: a basis may work out its dimensions together with them."""
        return self.open_door()


def _closed_on_error(function: Function) -> Function:
    """Discard the open step on an error: model and loss may hold values computed from records."""

    @functools.wraps(function)
    def guarded(self: PrivateStep, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(self, *args, **kwargs)
        except BaseException:
            self.discard()
            raise

    return cast(Function, guarded)


class PrivateStep:
    """One private step after another on a model: `accumulate` physical batches, then `release` once.

    The engine computes per-sample updates, projects, clips, sums and adds noise. It does not sample, log, schedule or
    checkpoint, and it counts only its own steps: the caller draws batches as its accounting says, and `charge` is
    called before the noise of a step is drawn.

    Guarantees, for records that do not interact in the model: one record moves the sum of a step by at most
    `max_grad_norm`; noise of standard deviation `noise_multiplier * max_grad_norm` is added once per release, also to
    an empty batch; the result is divided by the declared `expected_batch_size`.

    Args:
        model: the model; its trainable parameters are those of now.
        loss: maps (outputs, targets) to one number per sample.
        mechanism: the method, clip bound, noise, divisor and length. Sampling is the caller's business.
        noise: the source of noise and of random bases (default: secure).
        charge: called before the noise of each step is drawn.
        max_physical_batch_size: batches are padded up to this size at most.
        untrusted_weights: the weights come from somebody who sees whether a step succeeds. A record on which the model
            fails then adds nothing, and state that a forward pass changed is restored without an error.
        observers: called once per step with a view of its first physical batch.
        door: factory of the release mechanism.

    >>> import torch
    >>> from gnomon.sampling import Poisson
    >>> model = nn.Linear(2, 2)
    >>> mechanism = Mechanism(Poisson(0.01), noise_multiplier=1.0, expected_batch_size=8, steps=100, delta=1e-5)
    >>> step = PrivateStep(model, nn.CrossEntropyLoss(reduction="none"), mechanism)
    >>> step.accumulate(torch.randn(8, 2), torch.randint(0, 2, (8,)))
    >>> release = step.release()
    >>> step.apply(release, torch.optim.SGD(model.parameters(), lr=0.1))
    >>> step.taken, sorted(release.coordinates)
    (1, ['bias', 'weight'])
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        mechanism: Mechanism,
        *,
        noise: NoiseSource | None = None,
        charge: Callable[[], None] = lambda: None,
        max_physical_batch_size: int | None = None,
        untrusted_weights: bool = False,
        observers: Sequence[Observer] = (),
        door: Callable[..., Door] | None = None,
    ) -> None:
        reuse_freed_memory()
        self.model, self.loss, self._mechanism = model, per_sample(loss), mechanism
        self.noise = noise or SecureNoise()
        self.charge = charge
        self.max_physical_batch_size = max_physical_batch_size
        self.untrusted_weights = untrusted_weights
        self.observers = tuple(observers)
        self.taken = 0
        """The number of steps that were released, or count as released after a restart."""
        self.metrics: Metrics = {}
        """Unprotected statistics of the last released step, for the data holder only."""
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._door = door
        self.layouts = Layouts()
        """The cache of layouts of the model, for every computation of updates in the run."""
        self._update = mechanism.method.update_with(self.layouts)
        self._open: _OpenStep | None = None
        self._basis: tuple[Hashable, Basis] | None = None
        self._checked_rule: ClipRule | None = None
        self._snapshot: tuple[Loss, Any, Snapshot] | None = None
        self._multiple, self._order = multiple(mechanism.expected_batch_size), ordering(self.noise)

    # -- a step ----------------------------------------------------------------------------------

    @_closed_on_error
    @exact_products()
    def accumulate(self, inputs: Any, targets: Any) -> None:
        """Add the clipped updates of one physical batch to the sum of the open step.

        Raises:
            NotPrivate: the clip rule weighs a sample by other samples.
            StateError: parameters were frozen, unfrozen or replaced since the engine was created.
        """
        step = self._started()
        for updates, counts in self._updates(inputs, targets):
            seen = self._as_clipped(step.basis, updates, self.noise)
            admitted = step.door.admit(seen, self.method.clip_rule, counts)
            records = None if bool(counts.all()) else counts.nonzero().squeeze(1)
            if records is not None:  # what follows is about records, and not about padding
                admitted = admitted.select(records)
            if self.observers and not step.batches:  # the first physical batch stands for the step
                shown = updates if records is None else updates.select(records)
                view = self._view(self.context(), step.basis, shown, admitted)
                for observe in self.observers:
                    observe(view)
            step.batches += 1
            step.metrics.add(updates.losses if records is None else updates.losses[records], admitted)

    @_closed_on_error
    @exact_products()
    def release(self) -> Release:
        """Add noise to the sum of the open step and return the release, which may be published.

        Raises:
            NotPrivate: a forward pass changed state of model or loss.
        """
        step = self._started()
        if touched := step.snapshot.changed():
            step.snapshot.restore()
            if not self.untrusted_weights:
                refuse_touched(touched)
        released = step.door.release()
        self._open, self.metrics = None, step.metrics.record()
        self.taken += 1
        coordinates = self.method.route.lifted_coordinates(step.basis, released)
        return Release(coordinates, step.basis.extra(released), step.basis)

    @exact_products()
    def apply(self, release: Release, optimizer: Optimizer) -> None:
        """Move the model by a release. This is post-processing: it reads no record."""
        sign = -1.0 if self.method.displaces else 1.0  # a displacement points where to go, a gradient uphill
        self.method.step.move(self.parameters, release.basis, release.coordinates, optimizer, sign)

    def discard(self) -> None:
        """Drop the open step without a release, and restore the state of model and loss."""
        if self._open is not None and self._open.snapshot.pending:
            self._open.snapshot.restore()
        self._open = None

    def preview(self, inputs: Any, targets: Any, *, step: int | None = None) -> StepView:
        """Return a view of a step on these records without taking it. The view is private.

        Nothing is charged or released; the noise source of the run and the state of model and loss do not change.

        Args:
            inputs: the inputs of the records.
            targets: their targets.
            step: the number of the step (default: the step after the last planned one).
        """
        own = SecureNoise()  # a basis may draw public randomness, which must not come from the source of the run
        number = self.mechanism.steps if step is None else step
        context = dataclasses.replace(self.context(), step=number, randomness=own)
        with untouched(self.model):
            basis = self.method.subspace.basis(context)
            updates = at_step(self._update, number)(self.model, self.loss, inputs, targets)
        admitted = admission(self._as_clipped(basis, updates, own), self.method.clip_rule, self.mechanism.max_grad_norm)
        return self._view(context, basis, updates, admitted)

    # -- what surrounds it -----------------------------------------------------------------------

    def context(self) -> StepContext:
        """Return the context of the next step: released weights and public numbers, nothing private."""
        mechanism = self.mechanism
        return StepContext(
            self.model, self.loss, self.taken, mechanism.steps_per_epoch, mechanism.steps, self.noise, self.layouts
        )

    @property
    def basis(self) -> Basis | None:
        """The basis of the last step that was started."""
        return None if self._basis is None else self._basis[1]

    @property
    def mechanism(self) -> Mechanism:
        """The method, clip bound, noise, divisor and length of the steps. `exchange` replaces it."""
        return self._mechanism

    @property
    def method(self) -> Method:
        """The composition of stages."""
        return self.mechanism.method

    def exchange(self, method: Method) -> None:
        """Use another method from the next step on; noise, bound and price stay the same.

        Raises:
            SettingError: the steps of the other method cost something else.
        """
        self._mechanism, self._basis = self._mechanism.with_method(method), None
        self._update = method.update_with(self.layouts)

    def trial_coordinates(self, method: Method) -> CoordinateMap | None:
        """Return the map to the coordinates in which a method clips, for a check; None if it clips plain updates."""
        if not method.route.clips_coordinates or method.subspace.whole_space:
            return None
        # a basis may draw public randomness, which must not come from the source of the run
        return method.subspace.basis(dataclasses.replace(self.context(), randomness=SecureNoise())).coordinates

    def verify_contents(self) -> None:
        """Refuse a large tensor whose contents changed without an increase of torch's version counter."""
        if self._snapshot is not None and (touched := self._snapshot[2].verify_contents()):
            refuse_touched(touched)

    def state_dict(self) -> dict[str, int]:
        """Return the state that a restarted engine needs. Noise and row order are never stored."""
        return {"taken": self.taken}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue from the state of another engine."""
        self.discard()
        self.taken, self._basis = int(state["taken"]), None

    # -- parts -----------------------------------------------------------------------------------

    def _started(self) -> _OpenStep:
        """Return the open step, or start one."""
        if self._open is not None:
            return self._open
        now = {name: id(p) for name, p in self.model.named_parameters() if p.requires_grad}
        if now != {name: id(p) for name, p in self.parameters.items()}:
            raise StateError(
                "parameters were frozen, unfrozen or replaced since this Trainer or PrivateStep was created, which "
                "does not follow such changes: create another one"
            )
        metrics = StepMetrics(self.mechanism.max_grad_norm, self.method.unit)
        basis = self._current_basis()
        self._open = _OpenStep(basis, lambda: self._opened_door(basis), self._take_snapshot(), metrics)
        return self._open

    def _opened_door(self, basis: Basis) -> Door:
        """Return the door of a step."""
        route = self.method.route
        door = (self._door or Door)(
            route.release_shape(basis, {name: p.detach() for name, p in self.parameters.items()}),
            max_grad_norm=min(self.mechanism.max_grad_norm, sys.float_info.max),
            noise_multiplier=self.mechanism.noise_multiplier,
            expected_batch_size=self.mechanism.expected_batch_size,
            noise=self.noise,
            charge=self.charge,
            sketch=route.sketch(basis),
        )
        self._check_rule(door)
        return door

    def _current_basis(self) -> Basis:
        """Return the basis of this step, recomputed when it is due. Nothing private enters it."""
        context = self.context()
        key = self.method.subspace.key(context)
        if self._basis is None or self._basis[0] != key:
            self._basis = None  # frees the public gradients of the last basis before those of the next are computed
            self._basis = key, self.method.subspace.basis(context)
        return self._basis[1]

    def _check_rule(self, door: Door) -> None:
        """Refuse a clip rule that mixes samples; each rule is checked once."""
        if self.method.private and self._checked_rule is not self.method.clip_rule:
            device = next((value.device for value in door.like.values()), None)
            refuse_mixing_rule(self.method.clip_rule, len(door.like), door.max_grad_norm, device)
            self._checked_rule = self.method.clip_rule

    def _take_snapshot(self) -> Snapshot:
        """Return a snapshot of model, loss and what the update lets watch, before the step reads any record."""
        watched = getattr(self.method.update, "watched", None)
        if self._snapshot is None or self._snapshot[0] is not self.loss or self._snapshot[1] is not watched:
            roots = {"": self.model, "loss": self.loss} | ({} if watched is None else {"update": watched})
            self._snapshot = self.loss, watched, Snapshot(roots)
        self._snapshot[2].note(contents=True if self.taken + 1 >= self.mechanism.last_step else None)
        return self._snapshot[2]

    def _as_clipped(self, basis: Basis, updates: Updates, noise: NoiseSource) -> Updates:
        """Return the updates in the coordinates in which they are clipped."""
        seen = self.method.route.coordinates(basis, updates)
        return seen.perturbed(self.method.pre_noise, noise.normal) if self.method.pre_noise else seen

    def _updates(self, inputs: Any, targets: Any) -> Iterator[tuple[Updates, Tensor]]:
        """Yield the updates of a physical batch, and which of them belong to records.

        If somebody else chose the weights, an error that a certain record provokes would reveal that it is there. Then
        the records of a batch that fails are computed one by one, and records that fail alone add nothing.
        """
        placed = place(inputs, targets, self._multiple, self.max_physical_batch_size, self._order)
        update = at_step(self._update, self.taken)
        try:
            updates = update(self.model, self.loss, placed.inputs, placed.targets)
        except Exception:
            if not self.untrusted_weights:
                raise
            yield from self._one_by_one(update, placed)
        else:
            yield updates, placed.counts

    def _one_by_one(self, update: Update, placed: Placed) -> Iterator[tuple[Updates, Tensor]]:
        """Yield the updates of the records of a batch that can be computed alone."""
        for row in placed.counts.nonzero().flatten().tolist():
            inputs, targets = take_rows((placed.inputs, placed.targets), slice(row, row + 1))
            try:
                updates = update(self.model, self.loss, inputs, targets)
            except Exception:  # whatever the error is, the record adds nothing
                continue
            yield updates, placed.counts[row : row + 1]

    def _view(self, context: StepContext, basis: Basis, updates: Updates, admitted: Admitted) -> StepView:
        return StepView(context, self.mechanism, basis, updates, admitted)
