"""A resolved recipe: features, model, mechanism and optimizer, each with the reason for its settings."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from gnomon.data.records import Records
from gnomon.errors import DataError
from gnomon.features import Facts, FeatureMap, Pipeline, pipeline
from gnomon.losses import LOSSES, Loss
from gnomon.methods import ZeroSum, dp_sgd, softmax_head
from gnomon.models.networks import linear
from gnomon.recipes.choice import Choice, Reason, as_table, choose
from gnomon.recipes.formulas import LARGEST_LAM, LEAST_DIRECTIONS, MOST_NOISE, Budget, Schedule, schedule
from gnomon.sampling import FullBatch
from gnomon.training import Mechanism, train_on_public
from gnomon.validate import whole

WEIGHT_DECAY = 1e-3
"""Weight decay of the head that is trained on the public records."""

FEW = 10
"""Public records per class below which a recipe warns."""


@dataclass(frozen=True)
class Plan:
    """The settings that a recipe chose for one budget and one set of public records.

    Attributes:
        recipe: the name of the recipe.
        choice: the features.
        budget: the public facts it started from.
        features: the features, with the whitening that the budget allows.
        schedule: the settings of the private part.
        classes: the number of classes.
        warnings: warnings about the public records.

    >>> plan = best(shape=(4,), classes=2, records=1000, target_epsilon=1.0, progress=False)
    >>> plan.dimension, plan.schedule.max_grad_norm, plan.choice.start
    (5, 0.5, False)
    """

    recipe: str
    choice: Choice
    budget: Budget
    features: Pipeline
    schedule: Schedule
    classes: int
    warnings: tuple[str, ...] = ()

    @property
    def dimension(self) -> int:
        """The number of features of a record."""
        dimension = self.features.feature_map.dimension
        assert dimension is not None
        return dimension

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """All settings that the recipe chose, with the reasons."""
        budget, chosen = self.budget, self.schedule
        reasons = [
            Reason(
                "rho", f"{budget.signal:.4g}", f"{budget.records} records / noise {budget.noise:.3g} of one release"
            ),
            *self.choice.reasons,
        ]
        if (whitening := self.features.whitening) is not None:
            bounds = f"at least {LEAST_DIRECTIONS}, at most the rank {whitening.rank} of public features"
            reasons += [
                Reason("whitening-directions", str(whitening.k), f"10 sqrt(rho) or rho / 6, {bounds}"),
                Reason("whitening-lam", f"{whitening.lam:.4g}", f"1 / sqrt(rho), at most {LARGEST_LAM:g}"),
            ]
        if self.choice.start:
            reasons.append(Reason("warm-start", "public", f"head trained on public records, L2 {WEIGHT_DECAY:g}"))
        noise = f"noise of {chosen.final_noise:.3g} in each final weight, whatever the number of steps"
        if self.choice.start and chosen.final_noise < MOST_NOISE:
            noise += "; little, because the budget is small beside a public start"
        reasons += [
            Reason("max-grad-norm", f"{chosen.max_grad_norm:g}", "features have norm one"),
            Reason("sampler", "full", "all records in each step; the batch size hardly matters"),
            Reason("epochs", str(chosen.steps), "as many steps as plain SGD needs to be stable"),
            Reason("lr", f"{chosen.lr:g}", noise),
            Reason("known-space", "softmax-head", "gradients sum to zero over the classes; other noise is removed"),
        ]
        return tuple(reasons)

    def explain(self) -> str:
        """Return the settings and the reasons as a table."""
        return as_table(self.reasons)

    # -- what a Trainer needs -----------------------------------------------------------------------

    def model(self) -> nn.Module:
        """Return the initial model of the features: a softmax head, trained on public records where there are any."""
        model = linear((self.dimension,), self.classes)
        if self.choice.start:
            train_on_public(model, self.loss, self.features.public_features, weight_decay=WEIGHT_DECAY)
        return model

    @property
    def loss(self) -> Loss:
        """The per-sample cross-entropy."""
        return LOSSES["cross-entropy"]

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return plain SGD with the learning rate of the schedule."""
        return torch.optim.SGD(model.parameters(), lr=self.schedule.lr)

    def mechanism(self, model: nn.Module) -> Mechanism:
        """Return the privacy claim: full batches of all records with noise for the budget."""
        space: ZeroSum = softmax_head(model, self.loss)
        return Mechanism.calibrated(
            target_epsilon=self.budget.epsilon,
            sampler=FullBatch(),
            steps=self.schedule.steps,
            delta=self.budget.delta,
            expected_batch_size=self.budget.records,
            max_grad_norm=self.schedule.max_grad_norm,
            method=dp_sgd().within(space),
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the privacy statement."""
        notes = [self.features.feature_map.description]
        if self.choice.start:
            notes.append("The model started from one trained without noise on the public records: NOT protected.")
        return tuple(notes)

    # -- what a user needs --------------------------------------------------------------------------

    def records(self, records: Any, private: bool = True) -> Records:
        """Return the features of records, (inputs, targets) or Records, as training and evaluation take them.

        Args:
            records: the records.
            private: whether they are private; False for test records.
        """
        return self.features.records(as_records(records), private=private)

    def predictor(self, head: nn.Module) -> nn.Module:
        """Return a model of the inputs themselves: the feature map and a trained head."""
        return nn.Sequential(self.features.feature_map, head)


def resolve(
    recipe: str,
    choice: Choice,
    features: Pipeline,
    budget: Budget,
    classes: int,
    warnings: Sequence[str] = (),
) -> Plan:
    """Return the plan of a recipe for computed public features.

    Args:
        recipe: the name of the recipe.
        choice: the features that were chosen.
        features: the features, not whitened yet.
        budget: the budget.
        classes: the number of classes.
        warnings: warnings about the public records.

    >>> facts = Facts((4,))
    >>> plan = resolve("best", choose("best", facts), pipeline("scaled", facts), Budget(1000, 1.0, 1e-5), classes=2)
    >>> plan.features.whitening is None
    True
    """
    step = choice.kind.cold_step
    if choice.whiten:
        features = features.whitened(budget.directions, budget.lam)
        assert features.whitening is not None
        step = features.whitening.effective_dimension
    chosen = schedule(budget, step, clip=choice.kind.clip, start=choice.start)
    return Plan(recipe, choice, budget, features, chosen, classes, tuple(warnings))


def best(
    public: Any = None,
    *,
    shape: Sequence[int],
    classes: int,
    records: int,
    target_epsilon: float,
    target_delta: float = 1e-5,
    recipe: str = "best",
    features: str | FeatureMap | None = None,
    columns: Mapping[str, Any] | None = None,
    distortion: str = "none",
    cache: str | os.PathLike[str] | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Plan:
    """Return the plan of the best known recipe for a budget. No private record is read.

    Args:
        public: the public records, (inputs, targets) or Records, which are NOT protected; None without any.
        shape: the shape of one record.
        classes: the number of classes.
        records: the declared number of private records.
        target_epsilon: the epsilon to spend.
        target_delta: the delta at which it is stated.
        recipe: "best", "cold" (no start from public records) or "no-public".
        features: the feature map, or its name, in the place of the recipe's, such as
            `gnomon.features.Pretrained(network, name=..., trained_on=...)`.
        columns: the named columns of a table whose numbers are between 0 and 1, as `gnomon.data.Source.columns`.
        distortion: the distortion of public images: "strokes" for handwriting, "objects" or "colour" (default: by
            the number of channels).
        cache: the folder of computed features, which are as private as the records; None to keep them in memory.
        seed: the seed of random choices in the feature map.
        progress: whether to show progress bars.

    Raises:
        SettingError: a setting is out of range.
        DataError: the public records do not fit: another shape, one class alone, or not finite.

    >>> import gnomon
    >>> from gnomon.data import load, public_private
    >>> from gnomon.release import SeededNoise
    >>> digits = load("digits")
    >>> split = public_private(digits.train, private=1300, public=100)
    >>> plan = best(split.public, shape=(1, 8, 8), classes=10, records=1300, target_epsilon=3.0, progress=False)
    >>> trainer = gnomon.Trainer.from_recipe(plan, noise=SeededNoise(0), progress=False)
    >>> result = trainer.fit(plan.records(split.private), plan.records(digits.test, private=False))
    >>> result.history[-1]["validation/accuracy"] > 0.85, trainer.epsilon() <= 3.0
    (True, True)
    """
    budget = Budget(records, target_epsilon, target_delta)
    whole("classes", classes, 2)
    public = None if public is None else as_records(public)
    warnings = [] if public is None else check_public(public, shape, classes)
    facts = Facts(shape, public, columns or {}, seed=seed)
    name = features if isinstance(features, str) or features is None else "given"
    choice = choose(recipe, facts, distortion=distortion, features=name)
    parts = pipeline(
        features if isinstance(features, FeatureMap) else choice.features,
        facts if choice.whiten else replace(facts, public=None),
        copies=choice.copies,
        distortion=choice.distortion,
        cache=cache,
        progress=progress,
    )
    return resolve(recipe, choice, parts, budget, classes, warnings)


def as_records(data: Any) -> Records:
    """Return Records of (inputs, targets), or Records as they are.

    >>> len(as_records(([[0.5], [1.0]], [0, 1])))
    2
    """
    if isinstance(data, Records):
        return data
    try:
        inputs, targets = data
        return Records(torch.as_tensor(inputs), torch.as_tensor(targets))
    except (TypeError, ValueError) as error:
        raise DataError("the records", f"are no numbers ({error})", "give (inputs, targets) as arrays") from None


def check_public(public: Records, shape: Sequence[int], classes: int) -> list[str]:
    """Return warnings about public records, or raise DataError if a recipe cannot use them.

    >>> public = Records(torch.rand(12, 4), torch.arange(12) % 2)
    >>> check_public(public, (4,), 3)
    ['no public record of class 2: the public head starts without it', '12 public records are few: 100 are better']
    >>> check_public(public, (5,), 2)
    Traceback (most recent call last):
    gnomon.errors.DataError: the public records have shape (4,), the private ones (5,): give public records of the \
same shape
    """
    have, expected = tuple(public.inputs.shape[1:]), tuple(shape)
    if have != expected:
        problem = f"have shape {have}, the private ones {expected}"
        raise DataError("the public records", problem, "give public records of the same shape")
    if len(public) < 2:
        raise DataError("the public records", f"are {len(public)}", "give at least two, better a hundred")
    bad = ~public.inputs.flatten(1).isfinite().all(1)
    if bad.any():
        problem = f"are not finite in {int(bad.sum())} of {len(public)}"
        raise DataError("the public records", problem, "remove these records")
    labels = public.targets
    if labels.ndim != 1 or labels.dtype != torch.int64:
        problem = f"have targets of shape {tuple(labels.shape)} and type {labels.dtype}"
        raise DataError("the public records", problem, "give one class number for each record, as targets.long()")
    counts = Counter(labels.tolist())
    outside = sorted(label for label in counts if not 0 <= label < classes)
    if outside:
        problem = f"have the class {outside[0]}, outside of 0 to {classes - 1}"
        raise DataError("the public records", problem, "give public records of the classes of the private ones")
    if len(counts) < 2:
        raise DataError("the public records", "are all of one class", "give public records of every class")
    warnings = [
        f"no public record of class {label}: the public head starts without it"
        for label in range(classes)
        if label not in counts
    ]
    if len(public) < FEW * classes:
        warnings.append(f"{len(public)} public records are few: {max(100, FEW * classes)} are better")
    return warnings
