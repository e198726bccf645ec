"""The Trainer: the loop of private training, with progress, evaluation, ledger, averaging and statement."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from gnomon import validate
from gnomon.accounting import Account, Epsilon, Sampling
from gnomon.accounting.epsilon import Accountant
from gnomon.data import Loader
from gnomon.errors import SettingError, StateError
from gnomon.ledger import Ledger
from gnomon.ledger.session import LedgerSession
from gnomon.methods import Method
from gnomon.release import NoiseSource
from gnomon.statement.statement import Statement, ledger_caveats, ledger_note
from gnomon.training.admission import Admission
from gnomon.training.averaging import averaging
from gnomon.training.batches import Batches
from gnomon.training.checks.members import MembershipCheck
from gnomon.training.checks.model import check_model, refuse_foreign_parameters, refuse_optimizer
from gnomon.training.engine import PrivateStep, Release
from gnomon.training.evaluate import evaluate
from gnomon.training.interrupt import StopRequest
from gnomon.training.mechanism import Mechanism
from gnomon.training.metrics import Metrics, averaged
from gnomon.training.observer import Observer
from gnomon.training.progress import Bar
from gnomon.training.result import BudgetExhausted, TrainingResult
from gnomon.updates import Loss


class ResolvedRecipe(Protocol):
    """Model, loss, optimizer and mechanism as a recipe chose them."""

    @property
    def loss(self) -> Loss:
        """The loss, one number per sample."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the statement."""

    def model(self) -> nn.Module:
        """Return a new model with the initial weights."""

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Return the optimizer of the model."""

    def mechanism(self, model: nn.Module) -> Mechanism:
        """Return the privacy claim."""


MEMBERS_SCORED = "Scores on the validation records are of training records, wholly or in part: NOT protected."


class Trainer:
    """Train a model under differential privacy.

    A Trainer composes a `Mechanism` (the privacy claim), a `PrivateStep` (the engine) and `Batches` (the sampling), and
    adds what a run needs around them. Give the claim by its settings, or as a `mechanism`.

    Guarantee: while records do not interact in the model, which is checked as far as a few records show it, the weights
    after every step satisfy `epsilon()` at `target_delta`, for the stated adjacency. Every step is charged before its
    noise is drawn. Metrics under `unprotected/` are for the data holder only.

    Args:
        model: the model; parameters with `requires_grad` are trained.
        loss: maps (outputs, targets) to one number per sample; criteria of torch that average are converted.
        optimizer: any optimizer of torch over parameters of the model.
        method: the composition of stages (default: DP-SGD).
        max_grad_norm: the clip bound C (default: 1).
        expected_batch_size: the declared divisor of every noisy sum. Never derived from the number of records.
        target_delta: the delta at which epsilon is stated.
        sample_rate: the declared rate of Poisson sampling; or give a `sampler`.
        sampler: the declared sampling scheme.
        target_epsilon: calibrates the noise, or, beside a `noise_multiplier`, ends training at this epsilon.
        noise_multiplier: standard deviation of the noise, divided by `max_grad_norm`.
        epochs: the planned number of epochs; or give `steps`.
        steps: the planned number of steps.
        accountant: "pld" (default, tight), "rdp", "rdp-classic" or "gdp" (no guarantee).
        adjacency: which data sets are neighbours: "add-remove", "zero-out" or "replace-one".
        mechanism: the claim as one object, in the place of the settings from `method` to `adjacency`.
        max_physical_batch_size: the largest number of records in one forward pass; logical batches may be larger. With
            several views of each record, the model computes that many times as many rows.
        scheduler: a learning rate scheduler, moved after every `scheduler_every`: "epoch" or "step".
        scheduler_every: see `scheduler`.
        ema_decay: keeps an exponential moving average of the weights, which is evaluated and returned as `final`.
        ema_schedule: "constant", or "warm-up" for the decay `min(ema_decay, (1 + t) / (10 + t))` in step t.
        noise: the source of noise and batches (default: secure). A seeded source gives no privacy.
        example: a few made-up records (inputs, targets) to check the model with, in the place of private ones.
        notes: sentences to add to the statement.
        ledger: pays for every step before its noise is drawn, together with all other runs on the same records.
        dataset: the declared name of the records in the ledger; without it they are recognised by content.
        label: the name of this run in the ledger.
        observers: called once per step with a `StepView` of it, before the release. What they see is private.
        leave_out: records that are drawn and count for nothing, such as public records that somebody else chose.
        untrusted_weights: weights come from somebody who sees whether a step succeeds, such as the server of a
            federation. A record on which the model fails then adds nothing, instead of ending the step with an error.
        progress: whether to show a progress bar.

    Raises:
        SettingError: a setting is missing, out of range, or excluded by another one.
        NotPrivate: the model or the optimizer would let one record influence the update of another.

    >>> import torch
    >>> from gnomon.release import SeededNoise
    >>> model = nn.Linear(2, 2)
    >>> trainer = Trainer(
    ...     model, nn.CrossEntropyLoss(reduction="none"), torch.optim.SGD(model.parameters(), lr=0.5),
    ...     max_grad_norm=1.0, sample_rate=0.1, expected_batch_size=10,
    ...     target_epsilon=1.0, target_delta=1e-5, epochs=1, noise=SeededNoise(0), progress=False)
    >>> result = trainer.fit((torch.randn(100, 2), torch.randint(0, 2, (100,))))
    >>> result.steps, result.stopped, trainer.epsilon() <= 1.0
    (10, 'finished', True)
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        optimizer: Optimizer,
        *,
        method: Method | None = None,
        max_grad_norm: float | None = None,
        expected_batch_size: float | None = None,
        target_delta: float | None = None,
        sample_rate: float | None = None,
        sampler: Sampling | None = None,
        target_epsilon: float | None = None,
        noise_multiplier: float | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        accountant: Accountant | None = None,
        adjacency: str | None = None,
        mechanism: Mechanism | None = None,
        max_physical_batch_size: int | None = None,
        scheduler: LRScheduler | None = None,
        scheduler_every: str = "epoch",
        ema_decay: float | None = None,
        ema_schedule: str = "constant",
        noise: NoiseSource | None = None,
        example: tuple[Any, Any] | None = None,
        notes: Sequence[str] = (),
        ledger: Ledger | None = None,
        dataset: str | None = None,
        label: str = "",
        observers: Sequence[Observer] = (),
        leave_out: Any = None,
        untrusted_weights: bool = False,
        progress: bool = True,
    ) -> None:
        check_model(model)
        refuse_foreign_parameters(model, optimizer)
        refuse_optimizer(optimizer, scheduler)
        claim: dict[str, Any] = {
            "method": method,
            "max_grad_norm": max_grad_norm,
            "expected_batch_size": expected_batch_size,
            "target_delta": target_delta,
            "sample_rate": sample_rate,
            "sampler": sampler,
            "target_epsilon": target_epsilon,
            "noise_multiplier": noise_multiplier,
            "epochs": epochs,
            "steps": steps,
            "accountant": accountant,
            "adjacency": adjacency,
        }
        if mechanism is None:
            mechanism = Mechanism.from_settings(**claim)
        elif given := [name for name, value in claim.items() if value is not None]:
            message = f"give either mechanism or {given[0]}, not both: a mechanism contains the whole claim"
            raise SettingError.with_message(message, name=given[0])
        if scheduler_every not in ("epoch", "step"):
            raise SettingError("scheduler_every", scheduler_every, "'epoch' or 'step'")
        mechanism.method.step.prepare(model, optimizer)
        self.model, self.optimizer = model, optimizer
        self._account = mechanism.account()
        self.sampling = Batches(mechanism.sampler, max_physical_batch_size)
        self.engine = PrivateStep(
            model,
            loss,
            mechanism,
            noise=noise,
            charge=self._charge,
            max_physical_batch_size=max_physical_batch_size,
            untrusted_weights=untrusted_weights,
            observers=observers,
        )
        self.released: Release | None = None
        """The release of the last step; None before the first one and while a step is computed."""
        self.ledger_session = LedgerSession(
            ledger if self.noise.private else None,  # seeded noise hides nothing, so there is nothing to count
            self.account,
            mechanism.last_step,
            dataset=dataset,
            label=label or mechanism.method.name,
        )
        self.scheduler, self.scheduler_every = scheduler, scheduler_every
        self.progress, self.notes = progress, tuple(notes)
        self.average = averaging(model, optimizer, ema_decay, always=mechanism.method.average, schedule=ema_schedule)
        self.admission = Admission(
            model,
            mechanism.sampler,
            self.ledger_session,
            leave_out=leave_out,
            example=example,
            coordinates=self.engine.trial_coordinates,
            layouts=self.engine.layouts,
        )
        self.membership = MembershipCheck(self.admission.fingerprint_cache)
        if example is not None:
            self.admission.check(self.method, self.loss, *example)

    @classmethod
    def from_recipe(cls, recipe: ResolvedRecipe, **options: Any) -> Trainer:
        """Return the Trainer of a resolved recipe, such as `gnomon.recipes.best(...)` returns.

        Train it on `recipe.records(train)`, the features of the records.

        Args:
            recipe: the resolved recipe, which chooses model, loss, optimizer and mechanism.
            **options: the other arguments of a Trainer, such as `ledger`, `noise` or `progress`.
        """
        model = recipe.model()
        notes = (*recipe.notes, *options.pop("notes", ()))
        return cls(
            model, recipe.loss, recipe.optimizer(model), mechanism=recipe.mechanism(model), notes=notes, **options
        )

    # -- the parts -------------------------------------------------------------------------------

    @property
    def mechanism(self) -> Mechanism:
        """The privacy claim: method, bound, sampling, noise and length."""
        return self.engine.mechanism

    @property
    def account(self) -> Account:
        """The steps charged so far, and their price."""
        return self._account

    @property
    def method(self) -> Method:
        """The composition of stages. It may be exchanged for a method whose steps cost the same."""
        return self.mechanism.method

    @method.setter
    def method(self, method: Method) -> None:
        self.mechanism.with_method(method)  # refuses another price
        if method.average != self.method.average:
            allowed = "a method that averages weights exactly if the present one does, or another Trainer"
            raise SettingError("method", method.name, allowed)
        method.step.prepare(self.model, self.optimizer)
        self.engine.exchange(method)

    @property
    def loss(self) -> Loss:
        """The loss, one number per sample. Another one is checked by `fit` and `batches` before it is used."""
        return self.engine.loss

    @loss.setter
    def loss(self, loss: Loss) -> None:
        self.engine.loss = loss

    @property
    def noise(self) -> NoiseSource:
        """The source of noise and batches."""
        return self.engine.noise

    @noise.setter
    def noise(self, noise: NoiseSource) -> None:
        if noise.private != self.noise.private:
            raise SettingError("noise", type(noise).__name__, "a source that is as private as the present one")
        self.engine.noise = noise

    @property
    def observers(self) -> tuple[Observer, ...]:
        """Called once per step with a view of it, before the release."""
        return self.engine.observers

    @observers.setter
    def observers(self, observers: Sequence[Observer]) -> None:
        self.engine.observers = tuple(observers)

    @property
    def final(self) -> nn.Module:
        """The model that a run hands over: the average of its weights where one is kept."""
        return self.model if self.average is None else self.average.module

    # -- what it costs ---------------------------------------------------------------------------

    def epsilon(self) -> Epsilon:
        """Return epsilon of the steps so far."""
        return self.account.epsilon(self.mechanism.delta)

    def statement(self) -> Statement:
        """Return the privacy statement for the steps so far."""
        return Statement.of(
            self.epsilon(),
            method=self.method.describe(),
            max_grad_norm=self.mechanism.max_grad_norm,
            expected_batch_size=self.mechanism.expected_batch_size,
            private_noise=self.noise.private,
            notes=self._statement_notes(),
            ledger=ledger_note(self.ledger_session, self.mechanism.delta),
            account=self.account,
        )

    def _statement_notes(self) -> list[str]:
        notes = [*self.notes, *ledger_caveats(self.ledger_session)]
        if self.membership.ever:
            notes.insert(0, MEMBERS_SCORED)
        if self.method.public is not None:
            count = len(Loader(self.method.public, "public"))
            notes.insert(0, f"{count} records were used as public by the method and are NOT protected.")
        return notes

    # -- a loop of one's own ---------------------------------------------------------------------

    def check(self, train: Any) -> None:
        """Refuse records and models that could not be private, before anything is released.

        `fit` and `batches` do this too.
        """
        self._admit(train)

    def batches(self, train: Any) -> Iterator[tuple[Any, Any]]:
        """Yield batches as the declared sampling draws them, until the plan or the budget ends.

        A batch may be empty; hand it to `step` all the same. A shuffled batch is charged when the next one is drawn,
        whether `step` has had it or not.
        """
        loader = self._admit(train)
        draws = self._draws(loader)
        self.ledger_session.start()
        self._charge_unreleased()
        while self.account.steps + self.sampling.pending < self.mechanism.last_step:
            batch = loader.take(next(draws))
            self.sampling.pending += 1  # not before: a batch that cannot be read was handed to nobody
            yield batch
            self._charge_unreleased()

    def step(self, inputs: Any, targets: Any) -> Metrics:
        """Take one private step on a batch from `batches`, and return unprotected metrics of it.

        The scheduler moves as in `fit`: with every step, or with the last one of an epoch.

        Raises:
            StateError: no batch was drawn for this step.
            BudgetExhausted: the step would cost more than the target epsilon.
        """
        if self.sampling.pending == 0:
            raise StateError(
                "step() needs a batch drawn by trainer.batches(data), one for each step, and a shuffled one before the "
                "next is drawn: the privacy accounting is about how records are sampled"
            )
        if not self.engine.untrusted_weights:  # no error may depend on records then
            self.admission.check_collated(self.method, self.loss, inputs, targets)
        self.sampling.pending -= 1
        metrics = self._step(self.sampling.split(inputs, targets))
        if self._epoch_ends:
            self._schedule("epoch")
        return metrics

    # -- the whole run ---------------------------------------------------------------------------

    def fit(
        self,
        train: Any,
        validation: Any = None,
        on_epoch: Callable[[Metrics], None] | None = None,
        on_step: Callable[[int], None] | None = None,
        evaluate_every: int = 1,
    ) -> TrainingResult:
        """Train to the planned number of steps, the budget, or Ctrl-C, whichever comes first.

        Args:
            train: (inputs, targets) tensors, Records, or a torch Dataset of pairs.
            validation: records to score the model on. If they are training records, wholly or in part, their scores
                are logged as `unprotected/validation/`.
            on_epoch: called with the metrics of each epoch.
            on_step: called with the number of each step, after everything that belongs to it.
            evaluate_every: the number of epochs between two evaluations; the last epoch is always evaluated.

        Returns:
            The number of steps, epsilon, why training stopped, and the metrics of each epoch.
        """
        validate.whole("evaluate_every", evaluate_every)
        if validation is not None:
            Loader(validation, "validation").take(torch.tensor([0]))  # unreadable records show before they cost
            self.membership.compare(validation, train)
        loader = self._admit(train)
        if not self.model.training:
            self.model.train()
        history: list[Metrics] = []
        steps: list[Metrics] = []
        mechanism, account = self.mechanism, self.account
        draws = self._draws(loader)
        started = time.monotonic()
        self.ledger_session.start()
        self._charge_unreleased()
        bar = Bar(self.method.name, total=mechanism.last_step, done=account.steps, visible=self.progress)
        with StopRequest() as stop, bar:
            while account.steps < mechanism.last_step and not stop.requested:
                steps.append(self._step(self.sampling.read(loader, next(draws))))
                bar.update()
                ends = self._epoch_ends
                last = stop.requested or account.steps == mechanism.last_step
                if ends or last:
                    due = last or account.steps // mechanism.steps_per_epoch % evaluate_every == 0
                    metrics = self._epoch_metrics(steps, validation if due else None, started, last)
                    history.append(metrics)
                    steps.clear()
                    bar.show(metrics)
                    if on_epoch is not None:
                        on_epoch(metrics)
                if ends:
                    self._schedule("epoch")
                if on_step is not None:
                    on_step(account.steps)
        self.ledger_session.stop()
        stopped = "interrupted" if stop.requested else "finished"
        if stopped == "finished" and account.steps < mechanism.steps:
            stopped = "budget"
        return TrainingResult(account.steps, self.epsilon(), stopped, history)

    def record(self, validation: Any = None) -> Metrics:
        """Return the metrics as they are now, without a step.

        >>> import torch
        >>> from torch import nn
        >>> model = nn.Linear(2, 2)
        >>> trainer = Trainer(
        ...     model, nn.CrossEntropyLoss(reduction="none"), torch.optim.SGD(model.parameters(), lr=1.0),
        ...     sample_rate=0.5, expected_batch_size=2, noise_multiplier=1.0, target_delta=1e-5, steps=3)
        >>> trainer.record((torch.zeros(4, 2), torch.zeros(4).long()))["step"]
        0
        """
        if validation is not None:
            self.membership.compare(validation)
        return self._epoch_metrics([], validation, time.monotonic(), True)

    # -- parts -----------------------------------------------------------------------------------

    def _step(self, physical: Iterable[tuple[Any, Any]]) -> Metrics:
        """Take one logical step: accumulate the physical batches, release, and move the model."""
        if self.mechanism.max_steps is not None and self.account.steps + 1 > self.mechanism.max_steps:
            raise BudgetExhausted(
                f"after {self.account.steps} steps one more would exceed the target epsilon; spent: {self.epsilon()!r}"
            )
        self.admission.refuse_exchanged(self.method, self.loss)
        self.engine.taken = self.account.steps
        self.released = None  # frees the last release, and its basis, which may hold many public gradients
        try:
            for inputs, targets in physical:
                self.engine.accumulate(inputs, targets)
        except BaseException:  # also if reading the records fails
            self.engine.discard()
            raise
        self.released = self.engine.release()
        self.engine.apply(self.released, self.optimizer)
        if self.average is not None:
            self.average.update_parameters(self.model)
        self._schedule("step")
        return self.engine.metrics

    def _charge(self) -> None:
        """Charge one step that is about to be released: on disk first, then in memory."""
        self.ledger_session.charge()
        self.account.charge()

    def _charge_unreleased(self) -> None:
        """Charge shuffled batches that were drawn and never released: their records are used up."""
        for _ in range(self.sampling.unreleased(self.account.steps)):
            self._charge()
        if not self.mechanism.sampler.interruptible:
            self.sampling.pending = 0

    def _draws(self, loader: Loader) -> Iterator[Tensor]:
        return self.sampling.positions(loader, self.noise, self.account.steps)

    def _admit(self, train: Any) -> Loader:
        loader = self.admission.admit(train, self.method, self.loss)
        self.membership.train = train
        return loader

    @property
    def _epoch_ends(self) -> bool:
        return self.account.steps % self.mechanism.steps_per_epoch == 0

    def _schedule(self, every: str) -> None:
        """Move the scheduler, if it moves at this interval."""
        if self.scheduler is not None and self.scheduler_every == every:
            self.scheduler.step()

    def _epoch_metrics(self, steps: list[Metrics], validation: Any, started: float, last: bool) -> Metrics:
        count = self.account.steps
        metrics: Metrics = {
            "step": count,
            "epoch": count / self.mechanism.steps_per_epoch,
            "epsilon": float(self.epsilon()) if last else self._estimated_epsilon(),
            "seconds": time.monotonic() - started,
            **averaged(steps),
        }
        if self.engine.basis is not None and self.engine.basis.rank is not None:
            metrics["rank"] = self.engine.basis.rank
        if validation is not None:
            scores = evaluate(self.final, self.loss, validation)
            place = "unprotected/validation" if self.membership.current else "validation"
            metrics |= {f"{place}/{name}": value for name, value in scores.items()}
        return metrics

    def _estimated_epsilon(self) -> float:
        """An upper bound on epsilon so far, but never above epsilon of the whole plan."""
        estimate, last = self.account.estimate(self.mechanism.delta), self.mechanism.last_step
        if self.account.steps > last:
            return estimate
        return min(estimate, float(self.account.epsilon(self.mechanism.delta, last)))
