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

from gnomon import validate
from gnomon.clipping import ClipRule
from gnomon.methods import Method
from gnomon.release import Admitted, Door, NoiseSource, SecureNoise, ordering
from gnomon.release.door import admission
from gnomon.subspaces import Ambient, Basis, StepContext
from gnomon.training.checks.clip_rule import refuse_mixing_rule
from gnomon.training.checks.independence import Coordinates, refuse_touched
from gnomon.training.metrics import Metrics, StepMetrics
from gnomon.training.observer import Observer, StepView
from gnomon.training.placement import Placed, multiple, place
from gnomon.updates import Loss, Updates, per_sample
from gnomon.updates.exact import exact_products
from gnomon.updates.snapshot import Snapshot, untouched
from gnomon.updates.trees import take_rows

Step = TypeVar("Step", bound=Callable[..., Any])


class Release(NamedTuple):
    """What one step has released. All of it may be published.

    Attributes:
        coordinates: the noisy mean in the coordinates of the basis.
        extra: values that were released beside the update by name, such as the mean loss.
        basis: the basis of the step, made of public records and released weights.

    >>> from gnomon.methods import dp_sgd
    >>> step = PrivateStep(nn.Linear(2, 2), nn.CrossEntropyLoss(reduction="none"), dp_sgd(),
    ...                    max_grad_norm=1.0, noise_multiplier=1.0, expected_batch_size=8)
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
    door: Door
    snapshot: Snapshot
    metrics: StepMetrics
    batches: int = field(default=0)


def _closed_on_error(function: Step) -> Step:
    """Discard the open step if it fails: model and loss may hold what it read off records."""

    @functools.wraps(function)
    def guarded(self: PrivateStep, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(self, *args, **kwargs)
        except BaseException:
            self.discard()
            raise

    return cast(Step, guarded)


class PrivateStep:
    """One private step after another on a model: `accumulate` physical batches, then `release` once.

    The engine computes per-sample updates, projects, clips, sums and adds noise. It does not sample, log, schedule or
    checkpoint, and it counts nothing but its own steps: the caller draws batches as its accounting says, and `charge`
    is called before the noise of a step is drawn.

    Guarantees, for records that do not interact in the model: one record moves the sum of a step by at most
    `max_grad_norm`; noise of standard deviation `noise_multiplier * max_grad_norm` is added once per release, also if
    no record came; the result is divided by the declared `expected_batch_size`.

    Args:
        model: the model; its trainable parameters are those of now.
        loss: maps (outputs, targets) to one number a sample.
        method: the composition of stages.
        max_grad_norm: the clip bound C.
        noise_multiplier: the standard deviation of the noise in units of C.
        expected_batch_size: the declared divisor.
        noise: source of noise and of random bases (default: secure).
        charge: called before the noise of each step is drawn.
        steps: the planned number of steps; bases may depend on it.
        steps_per_epoch: the number of steps in an epoch; bases may be renewed by epoch.
        last_step: the step in which all state of model and loss is compared by content (default: `steps`).
        max_physical_batch_size: batches are padded up to this size at most.
        untrusted_weights: the weights come from somebody who sees whether a step succeeds. A record on which the model
            fails then adds nothing, and state that a forward pass changed is put back without an error.
        observers: called once a step with a view of its first physical batch.
        door: factory of the release mechanism.

    >>> import torch
    >>> from gnomon.methods import dp_sgd
    >>> model = nn.Linear(2, 2)
    >>> step = PrivateStep(model, nn.CrossEntropyLoss(reduction="none"), dp_sgd(),
    ...                    max_grad_norm=1.0, noise_multiplier=1.0, expected_batch_size=8)
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
        method: Method,
        *,
        max_grad_norm: float,
        noise_multiplier: float,
        expected_batch_size: float,
        noise: NoiseSource | None = None,
        charge: Callable[[], None] = lambda: None,
        steps: int = 1,
        steps_per_epoch: int = 1,
        last_step: int | None = None,
        max_physical_batch_size: int | None = None,
        untrusted_weights: bool = False,
        observers: Sequence[Observer] = (),
        door: Callable[..., Door] | None = None,
    ) -> None:
        self.model, self.loss, self.method = model, per_sample(loss), method
        self.max_grad_norm = max_grad_norm
        self.noise_multiplier = noise_multiplier
        self.expected_batch_size = validate.positive("expected_batch_size", expected_batch_size)
        self.noise = noise or SecureNoise()
        self.charge = charge
        self.steps, self.steps_per_epoch = steps, steps_per_epoch
        self.last_step = steps if last_step is None else last_step
        self.max_physical_batch_size = max_physical_batch_size
        self.untrusted_weights = untrusted_weights
        self.observers = tuple(observers)
        self.taken = 0
        """How many steps were released, or count as such after a restart."""
        self.metrics: Metrics = {}
        """Unprotected statistics of the last step that was released, for the data holder only."""
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._door = door
        self._open: _OpenStep | None = None
        self._basis: tuple[Hashable, Basis] | None = None
        self._checked_rule: ClipRule | None = None
        self._snapshot: tuple[Loss, Snapshot] | None = None
        self._multiple, self._order = multiple(self.expected_batch_size), ordering(self.noise)

    # -- a step ----------------------------------------------------------------------------------

    @_closed_on_error
    @exact_products()
    def accumulate(self, inputs: Any, targets: Any) -> None:
        """Add the clipped updates of one physical batch to the sum of the open step.

        Raises:
            NotPrivate: the clip rule looks at other samples.
            RuntimeError: parameters were frozen, thawed or replaced since the engine was made.
        """
        step = self._begun()
        for updates, counts in self._updates(inputs, targets):
            seen = self._as_clipped(step.basis, updates, self.noise)
            records = counts.nonzero().squeeze(1)
            admitted = step.door.admit(seen, self.method.clip_rule, counts).select(records)
            if self.observers and not step.batches:  # the first physical batch stands for the step
                view = self._view(self.context(), step.basis, updates.select(records), admitted)
                for observe in self.observers:
                    observe(view)
            step.batches += 1
            step.metrics.see(updates.losses[records], admitted)

    @_closed_on_error
    @exact_products()
    def release(self) -> Release:
        """Add noise to the sum of the open step, and return what may be published.

        Raises:
            NotPrivate: model or loss kept something that they read off the records.
        """
        step = self._begun()
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
        """Move the model by what was released. This is post-processing: it reads no record."""
        sign = -1.0 if self.method.displaces else 1.0  # a displacement says where to go, not how steep it is
        self.method.step.move(self.parameters, release.basis, release.coordinates, optimizer, sign)

    def discard(self) -> None:
        """Drop the open step without a release, and put back what it changed in model and loss."""
        if self._open is not None and self._open.snapshot.pending:
            self._open.snapshot.restore()
        self._open = None

    def preview(self, inputs: Any, targets: Any, *, step: int | None = None) -> StepView:
        """Return what a step on these records would look like, without taking it. The view is private.

        Nothing is charged or released, and neither the run's noise nor the state of model and loss moves. Without a
        number it is the step after the last one that is planned.
        """
        own = SecureNoise()  # a new basis may need public randomness, and must not take it from the run's
        context = dataclasses.replace(self.context(), step=self.steps if step is None else step, randomness=own)
        with untouched(self.model):
            basis = self.method.subspace.basis(context)
            updates = self.method.update(self.model, self.loss, inputs, targets)
        admitted = admission(self._as_clipped(basis, updates, own), self.method.clip_rule, self.max_grad_norm)
        return self._view(context, basis, updates, admitted)

    # -- what surrounds it -----------------------------------------------------------------------

    def context(self) -> StepContext:
        """Return where training stands: released weights and public numbers, nothing private."""
        return StepContext(self.model, self.loss, self.taken, self.steps_per_epoch, self.steps, self.noise)

    @property
    def basis(self) -> Basis | None:
        """The basis of the last step that was begun."""
        return None if self._basis is None else self._basis[1]

    def exchange(self, method: Method) -> None:
        """Use another method from the next step on. The caller has checked that it costs the same."""
        self.method, self._basis = method, None

    def trial_coordinates(self, method: Method) -> Coordinates | None:
        """Return how a method looks at updates before it clips them, for a check; None if as they are."""
        if not method.route.clips_coordinates or isinstance(method.subspace, Ambient):
            return None
        # a new basis may need public randomness, and must not take it from the run's
        return method.subspace.basis(dataclasses.replace(self.context(), randomness=SecureNoise())).coordinates

    def verify_contents(self) -> None:
        """Refuse a large tensor that was written since its contents were last read, unseen by torch's own count."""
        if self._snapshot is not None and (touched := self._snapshot[1].verify_contents()):
            refuse_touched(touched)

    def state_dict(self) -> dict[str, int]:
        """Return what a restarted engine needs to go on. Noise and row order are never stored."""
        return {"taken": self.taken}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on where another engine stopped."""
        self.discard()
        self.taken, self._basis = int(state["taken"]), None

    # -- parts -----------------------------------------------------------------------------------

    def _begun(self) -> _OpenStep:
        """The open step; a new one if there is none."""
        if self._open is not None:
            return self._open
        now = {name: id(p) for name, p in self.model.named_parameters() if p.requires_grad}
        if now != {name: id(p) for name, p in self.parameters.items()}:
            raise RuntimeError(
                "parameters were frozen, thawed or replaced since this Trainer or PrivateStep was made, and it would "
                "not follow: make another"
            )
        basis, route = self._basis_now(), self.method.route
        door = (self._door or Door)(
            route.release_shape(basis, {name: p.detach() for name, p in self.parameters.items()}),
            max_grad_norm=min(self.max_grad_norm, sys.float_info.max),
            noise_multiplier=self.noise_multiplier,
            expected_batch_size=self.expected_batch_size,
            noise=self.noise,
            charge=self.charge,
            sketch=route.sketch(basis),
        )
        self._check_rule(door)
        metrics = StepMetrics(self.max_grad_norm, self.method.unit)
        self._open = _OpenStep(basis, door, self._noted(), metrics)
        return self._open

    def _basis_now(self) -> Basis:
        """The subspace's basis for this step, made anew when it is due. Nothing private goes into it."""
        context = self.context()
        key = self.method.subspace.key(context)
        if self._basis is None or self._basis[0] != key:
            self._basis = key, self.method.subspace.basis(context)
        return self._basis[1]

    def _check_rule(self, door: Door) -> None:
        """Refuse a clip rule that mixes samples, once for each rule."""
        if self.method.private and self._checked_rule is not self.method.clip_rule:
            device = next((value.device for value in door.like.values()), None)
            refuse_mixing_rule(self.method.clip_rule, len(door.like), door.max_grad_norm, device)
            self._checked_rule = self.method.clip_rule

    def _noted(self) -> Snapshot:
        """Model and loss as they are before a step's records are seen."""
        if self._snapshot is None or self._snapshot[0] is not self.loss:
            self._snapshot = self.loss, Snapshot({"": self.model, "loss": self.loss})
        self._snapshot[1].note(contents=True if self.taken + 1 >= self.last_step else None)
        return self._snapshot[1]

    def _as_clipped(self, basis: Basis, updates: Updates, noise: NoiseSource) -> Updates:
        """The updates in the form in which they are clipped."""
        seen = self.method.route.coordinates(basis, updates)
        return seen.perturbed(self.method.pre_noise, noise.normal) if self.method.pre_noise else seen

    def _updates(self, inputs: Any, targets: Any) -> Iterator[tuple[Updates, Tensor]]:
        """The updates of a physical batch, and which of them are of records.

        Where somebody else chose the weights, an error that they could provoke with one record would tell them that it
        is there. Then the records of a batch that cannot be computed are taken one by one, and those that fail on their
        own add nothing.
        """
        placed = place(inputs, targets, self._multiple, self.max_physical_batch_size, self._order)
        try:
            updates = self.method.update(self.model, self.loss, placed.inputs, placed.targets)
        except Exception:
            if not self.untrusted_weights:
                raise
            yield from self._one_by_one(placed)
        else:
            yield updates, placed.counts

    def _one_by_one(self, placed: Placed) -> Iterator[tuple[Updates, Tensor]]:
        """The updates of those records of a batch that can be computed alone."""
        for row in placed.counts.nonzero().flatten().tolist():
            inputs, targets = take_rows((placed.inputs, placed.targets), slice(row, row + 1))
            try:
                updates = self.method.update(self.model, self.loss, inputs, targets)
            except Exception:  # whatever it is, the record counts for nothing
                continue
            yield updates, placed.counts[row : row + 1]

    def _view(self, context: StepContext, basis: Basis, updates: Updates, admitted: Admitted) -> StepView:
        return StepView(
            context, self.method, basis, updates, admitted,
            self.max_grad_norm, self.noise_multiplier, self.expected_batch_size,
        )  # fmt: skip
