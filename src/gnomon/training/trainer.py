"""The trainer: records -> updates -> coordinates -> weights -> release -> lift -> step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from gnomon import methods, validate
from gnomon.accounting import Account, Epsilon, Sampling
from gnomon.accounting.epsilon import Accountant
from gnomon.data import Loader
from gnomon.errors import SettingError
from gnomon.ledger import Ledger
from gnomon.ledger.session import LedgerSession
from gnomon.release import NoiseSource
from gnomon.statement.statement import Statement, ledger_caveats, ledger_note
from gnomon.training.admission import Admission
from gnomon.training.averaging import averaging
from gnomon.training.checks.members import of_members
from gnomon.training.checks.model import (
    refuse_batch_norm,
    refuse_device,
    refuse_distributed,
    refuse_foreign_parameters,
    refuse_max_norm,
    refuse_optimizer,
)
from gnomon.training.draws import Draws
from gnomon.training.engine import PrivateStep, Release
from gnomon.training.evaluate import evaluate
from gnomon.training.interrupt import StopRequest
from gnomon.training.metrics import Metrics, averaged
from gnomon.training.observer import Observer
from gnomon.training.plan import no_noise, plan
from gnomon.training.progress import Bar
from gnomon.training.result import BudgetExhausted, TrainingResult
from gnomon.updates import Loss
from gnomon.updates.gradients import batch_size
from gnomon.updates.trees import take_rows


class Trainer:
    """Trains a model under differential privacy.

    `loss` maps (outputs, targets) to one number a sample. `sample_rate` and `expected_batch_size` are
    declared, public numbers: nothing is derived from how many records there are. Give `target_epsilon`
    to have the noise worked out, or `noise_multiplier` to set it, or both to stop at the budget. `observers` are
    called once a step with a `StepView` of it, before the release. A record that also occurs in `leave_out` is drawn
    and counts for nothing; it is for public records that a stranger chose, to whom a refusal would tell who is in
    `train`. With `untrusted_weights` the model's weights come from somebody who sees whether a step succeeds, such as
    the server of a federation: a record on which the model fails adds nothing to its step, instead of ending it with an
    error.

    With a `ledger`, every step is paid for there before its noise is drawn, and counts together with all other runs
    on the same records. They are recognised by content, or by `dataset`, a name that you declare.

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
        method: methods.Method | None = None,
        max_grad_norm: float = 1.0,
        expected_batch_size: float,
        target_delta: float,
        sample_rate: float | None = None,
        sampler: Sampling | None = None,
        target_epsilon: float | None = None,
        noise_multiplier: float | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        accountant: Accountant = "pld",
        adjacency: str | None = None,
        max_physical_batch_size: int | None = None,
        scheduler: LRScheduler | None = None,
        scheduler_every: str = "epoch",
        ema_decay: float | None = None,
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
        for p in model.parameters():
            refuse_device(p.device)
        refuse_distributed(model)
        refuse_batch_norm(model)
        refuse_max_norm(model)
        refuse_foreign_parameters(model, optimizer)
        refuse_optimizer(optimizer, scheduler)
        self.model, self.optimizer = model, optimizer
        method = method or methods.dp_sgd()
        max_grad_norm = validate.positive("max_grad_norm", max_grad_norm) if method.private else math.inf
        if not method.private:
            noise_multiplier = no_noise(method.name, target_epsilon, noise_multiplier)
        expected_batch_size = validate.positive("expected_batch_size", expected_batch_size)
        self.plan = plan(
            sample_rate=sample_rate,
            sampler=sampler,
            expected_batch_size=expected_batch_size,
            target_epsilon=target_epsilon,
            target_delta=target_delta,
            sigma=noise_multiplier,
            epochs=epochs,
            steps=steps,
            accountant=accountant,
            adjacency=adjacency,
            expansion=method.expansion,
        )
        method.check(self.plan.sampler)
        method.step.prepare(model, optimizer)
        if max_physical_batch_size is not None:
            validate.whole("max_physical_batch_size", max_physical_batch_size)
        self.engine = PrivateStep(
            model,
            loss,
            method,
            max_grad_norm=max_grad_norm,
            noise_multiplier=self.account.noise_multiplier,
            expected_batch_size=expected_batch_size,
            noise=noise,
            charge=self._charge,
            steps=self.plan.steps,
            steps_per_epoch=self.plan.steps_per_epoch,
            last_step=self.plan.last,
            max_physical_batch_size=max_physical_batch_size,
            untrusted_weights=untrusted_weights,
            observers=observers,
        )
        self.released: Release | None = None
        """What the last step released."""
        # seeded noise hides nothing, so there is nothing to count
        used = ledger if self.noise.private else None
        self.ledger_session = LedgerSession(
            used, self.account, self.plan.last, dataset=dataset, label=label or self.method.name
        )
        if scheduler_every not in ("epoch", "step"):
            raise SettingError("scheduler_every", scheduler_every, "'epoch' or 'step'")
        self.scheduler, self.scheduler_every = scheduler, scheduler_every
        self.progress, self.notes = progress, tuple(notes)
        self.average = averaging(model, optimizer, ema_decay, always=method.average)
        self._admitted: Any = None  # the training records, once there are any
        self._scores_members = False  # by the validation records that were scored last
        self._scored_members = False  # ever
        self._drawn = 0
        self._sequence: Draws | None = None
        self.admission = Admission(
            model,
            self.plan.sampler,
            self.ledger_session,
            leave_out=leave_out,
            example=example,
            coordinates=self.engine.trial_coordinates,
        )
        if example is not None:
            self.admission.check(self.method, self.loss, *example)

    # -- what the accounting is about ------------------------------------------------------------

    @property
    def account(self) -> Account:
        """What has been spent."""
        return self.plan.account

    @property
    def loss(self) -> Loss:
        """The loss, one number a sample. Another one is checked by `fit` and `batches` before it is used."""
        return self.engine.loss

    @loss.setter
    def loss(self, loss: Loss) -> None:
        self.engine.loss = loss

    @property
    def max_grad_norm(self) -> float:
        """The clip bound C."""
        return self.engine.max_grad_norm

    @property
    def expected_batch_size(self) -> float:
        """The declared divisor of every release."""
        return self.engine.expected_batch_size

    @property
    def max_physical_batch_size(self) -> int | None:
        """The largest number of records in one forward pass."""
        return self.engine.max_physical_batch_size

    @property
    def observers(self) -> tuple[Observer, ...]:
        """Called once a step with a view of it, before the release."""
        return self.engine.observers

    @observers.setter
    def observers(self, observers: Sequence[Observer]) -> None:
        self.engine.observers = tuple(observers)

    @property
    def noise(self) -> NoiseSource:
        """The source of noise and batches."""
        return self.engine.noise

    @noise.setter
    def noise(self, noise: NoiseSource) -> None:
        if noise.private != self.noise.private:
            raise SettingError("noise", type(noise).__name__, "a source that hides as much as the one before")
        self.engine.noise = noise

    @property
    def method(self) -> methods.Method:
        """The composition of stages. Another one must cost the same."""
        return self.engine.method

    @method.setter
    def method(self, method: methods.Method) -> None:
        if method.expansion != self.account.expansion or method.private != self.method.private:
            allowed = "one whose steps cost the same as those that were planned, or another Trainer"
            raise SettingError("method", method.name, allowed)
        if method.average != self.method.average:
            raise SettingError("method", method.name, "one that averages weights if the other did, or another Trainer")
        method.check(self.plan.sampler)
        method.step.prepare(self.model, self.optimizer)
        self.engine.exchange(method)

    @property
    def final(self) -> nn.Module:
        """The model that a run hands over: the average of its weights where one is kept."""
        return self.model if self.average is None else self.average.module

    # -- what it costs ---------------------------------------------------------------------------

    def epsilon(self) -> Epsilon:
        """What the steps so far have cost."""
        return self.account.epsilon(self.plan.delta)

    def statement(self) -> Statement:
        """The privacy statement for the steps so far."""
        return Statement.of(
            self.epsilon(),
            method=self.method.describe(),
            max_grad_norm=self.max_grad_norm,
            expected_batch_size=self.expected_batch_size,
            private_noise=self.noise.private,
            notes=self._notes(),
            ledger=ledger_note(self.ledger_session, self.plan.delta),
            account=self.account,
        )

    def _notes(self) -> list[str]:
        notes = [*self.notes, *ledger_caveats(self.ledger_session)]
        if self._scored_members:
            notes.insert(
                0, "Scores on the validation records are of training records, wholly or in part: NOT protected."
            )
        if self.method.public is not None:
            count = len(Loader(self.method.public, "public"))
            notes.insert(0, f"{count} records were used as public by the method and are NOT protected.")
        return notes

    # -- a loop of one's own ---------------------------------------------------------------------

    def batches(self, train: Any) -> Iterator[tuple[Any, Any]]:
        """Batches as the declared sampling draws them, until the plan or the budget ends.

        A batch may be empty; hand it to `step` all the same. A shuffled batch counts when the next one is drawn,
        whether `step` has had it or not.
        """
        loader = self._loader(train)
        draws = self._draws(loader)
        self.ledger_session.start()
        self._make_up()
        while self.account.steps + self._drawn < self.plan.last:
            batch = loader.take(next(draws))
            self._drawn += 1  # not before: if this cannot be read, nobody has it
            yield batch
            self._make_up()

    def step(self, inputs: Any, targets: Any) -> Metrics:
        """One private step on a batch from `batches`. Returns unprotected diagnostics.

        The scheduler moves as in `fit`: with every step, or with the last one of an epoch.
        """
        if self._drawn == 0:
            raise RuntimeError(
                "step() needs a batch drawn by trainer.batches(data), one for each step, and a shuffled one before the "
                "next is drawn: the privacy accounting is about how records are sampled"
            )
        if not self.engine.untrusted_weights:  # no error may depend on records then
            self.admission.check_collated(self.method, self.loss, inputs, targets)
        self._drawn -= 1
        record = self._step(_cut(inputs, targets, self.max_physical_batch_size))
        if self._epoch_ends:
            self._schedule("epoch")
        return record

    # -- the whole job ---------------------------------------------------------------------------

    def fit(
        self,
        train: Any,
        validation: Any = None,
        on_epoch: Callable[[Metrics], None] | None = None,
        on_step: Callable[[int], None] | None = None,
        evaluate_every: int = 1,
    ) -> TrainingResult:
        """Train to the planned number of steps, the budget, or Ctrl-C, whichever comes first.

        `train` and `validation` are (inputs, targets) tensors, Records, or torch Datasets of pairs. `on_epoch` gets
        each record of metrics, `on_step` the number of the step after everything that belongs to it. The model is
        scored on `validation` after every `evaluate_every` epochs, and at the end; scores of records that are wholly
        or in part training records (`gnomon.training.checks.members`) are logged as `unprotected/validation/`.
        """
        validate.whole("evaluate_every", evaluate_every)
        if validation is not None:
            Loader(validation, "validation").take(torch.tensor([0]))  # what cannot be read is named before it costs
            self._compare(validation, train)
        loader = self._loader(train)
        if not self.model.training:
            self.model.train()
        history: list[Metrics] = []
        steps: list[Metrics] = []
        draws = self._draws(loader)
        started = time.monotonic()
        self.ledger_session.start()
        self._make_up()
        bar = Bar(self.method.name, total=self.plan.last, done=self.account.steps, visible=self.progress)
        with StopRequest() as stop, bar:
            while self.account.steps < self.plan.last and not stop.asked:
                steps.append(self._step(self._physical(loader, next(draws))))
                bar.update()
                ends = self._epoch_ends
                last = stop.asked or self.account.steps == self.plan.last
                if ends or last:
                    due = last or self.account.steps // self.plan.steps_per_epoch % evaluate_every == 0
                    record = self._epoch_record(steps, validation if due else None, started, last)
                    history.append(record)
                    steps.clear()
                    bar.tell(record)
                    if on_epoch is not None:
                        on_epoch(record)
                if ends:
                    self._schedule("epoch")
                if on_step is not None:
                    on_step(self.account.steps)
        self.ledger_session.stop()
        stopped = "interrupted" if stop.asked else "finished"
        if stopped == "finished" and self.account.steps < self.plan.steps:
            stopped = "budget"
        return TrainingResult(self.account.steps, self.epsilon(), stopped, history)

    def record(self, validation: Any = None) -> Metrics:
        """The metrics as they are now, without a step.

        >>> import torch
        >>> from torch import nn
        >>> model = nn.Linear(2, 2)
        >>> trainer = Trainer(
        ...     model, nn.CrossEntropyLoss(reduction="none"), torch.optim.SGD(model.parameters(), lr=1.0),
        ...     sample_rate=0.5, expected_batch_size=2, noise_multiplier=1.0, target_delta=1e-5, steps=3)
        >>> trainer.record((torch.zeros(4, 2), torch.zeros(4).long()))["step"]
        0
        """
        if validation is not None and self._admitted is not None:
            self._compare(validation, self._admitted)
        return self._epoch_record([], validation, time.monotonic(), True)

    # -- the step itself -------------------------------------------------------------------------

    def _step(self, physical: Iterable[tuple[Any, Any]]) -> Metrics:
        """One logical step: accumulate the physical batches, release, and move the model."""
        if self.account.steps + 1 > self.plan.affordable:
            raise BudgetExhausted(
                f"after {self.account.steps} steps one more would exceed the target epsilon; spent: {self.epsilon()!r}"
            )
        self.admission.refuse_exchanged(self.method, self.loss)
        self.engine.taken = self.account.steps
        try:
            for inputs, targets in physical:
                self.engine.accumulate(inputs, targets)
        except BaseException:  # also of what reads the records
            self.engine.discard()
            raise
        self.released = self.engine.release()
        self.engine.apply(self.released, self.optimizer)
        if self.average is not None:
            self.average.update_parameters(self.model)
        self._schedule("step")
        return self.engine.metrics

    @property
    def _epoch_ends(self) -> bool:
        return self.account.steps % self.plan.steps_per_epoch == 0

    def _schedule(self, every: str) -> None:
        """Moves the scheduler, if this is what it moves with."""
        if self.scheduler is not None and self.scheduler_every == every:
            self.scheduler.step()

    def _charge(self) -> None:
        """One more step is about to be released: on disk first, then in memory."""
        self.ledger_session.charge()
        self.account.charge()

    def _physical(self, loader: Loader, chosen: Tensor) -> Iterator[tuple[Any, Any]]:
        for part in chosen.split(self.max_physical_batch_size or max(1, len(chosen))):
            yield loader.take(part)

    # -- small things ----------------------------------------------------------------------------

    def check(self, train: Any) -> None:
        """Refuses, before anything is released, what could not be private; `fit` and `batches` do it too."""
        self._loader(train)

    def _loader(self, train: Any) -> Loader:
        loader = self.admission.admit(train, self.method, self.loss)
        self._admitted = train
        return loader

    def _compare(self, validation: Any, train: Any) -> None:
        """Notes whether scores on the validation records are scores of training records."""
        self._scores_members = of_members(validation, train, self.admission.fingerprint_cache)
        self._scored_members |= self._scores_members

    def _draws(self, loader: Loader) -> Iterator[Tensor]:
        """The positions of the coming steps. A second call goes on where the first one stopped.

        Starting a shuffled epoch anew would use a record twice where it is counted once.
        """
        size = len(loader)
        if self._sequence is None:
            self._sequence = Draws(self.plan.sampler, size, self.noise, self.account.steps)
        if self._sequence.size != size:
            raise ValueError(
                f"train holds {size} records, an earlier call had {self._sequence.size}: "
                "one Trainer accounts for one data set; make another for other data"
            )
        order = None if self.plan.sampler.pauses else loader.order()
        self._sequence.check(order)
        return self._sequence.over(order)

    def _make_up(self) -> None:
        """Count shuffled batches that were drawn and not released, after an error for example.

        The epoch after them begins as many steps earlier, with records that were used in this one. They cannot be used
        later.
        """
        if not self.plan.sampler.pauses and self._sequence is not None:
            for _ in range(self._sequence.taken + self._sequence.begun - self.account.steps):
                self._charge()
            self._drawn = 0

    def draw_anew(self) -> None:
        """Forget the order of the records that are left, where another account of the steps was taken up."""
        self._sequence = None

    def _epsilon_now(self, exact: bool) -> float:
        """What the steps so far have cost: exact, or estimated from above but never above what the plan will cost."""
        if exact:
            return float(self.epsilon())
        estimate = self.account.estimate(self.plan.delta)
        if self.account.steps > self.plan.last:
            return estimate
        return min(estimate, float(self.account.epsilon(self.plan.delta, self.plan.last)))

    def _epoch_record(self, steps: list[Metrics], validation: Any, started: float, last: bool) -> Metrics:
        record: Metrics = {
            "step": self.account.steps,
            "epoch": self.account.steps / self.plan.steps_per_epoch,
            "epsilon": self._epsilon_now(exact=last),
            "seconds": time.monotonic() - started,
            **averaged(steps),
        }
        rank = getattr(self.engine.basis, "rank", None)
        if rank is not None:
            record["rank"] = rank
        if validation is not None:
            scores = evaluate(self.final, self.loss, validation)
            place = "unprotected/validation" if self._scores_members else "validation"
            record |= {f"{place}/{name}": value for name, value in scores.items()}
        return record


def _cut(inputs: Any, targets: Any, most: int | None) -> Iterator[tuple[Any, Any]]:
    """A batch in physical parts."""
    size = batch_size(inputs)
    for start in range(0, max(size, 1), most or max(size, 1)):
        yield take_rows((inputs, targets), slice(start, start + (most or max(size, 1))))
