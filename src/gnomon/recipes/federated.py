"""The recipe of federations: the central recipe at the signal that all clients have together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gnomon.features import Pipeline
from gnomon.recipes.choice import Choice, Reason, as_table
from gnomon.recipes.formulas import Budget, Schedule
from gnomon.recipes.plan import Plan, resolve


@dataclass(frozen=True)
class FederatedPlan:
    """The settings that the recipe `fed-best` chose.

    In each round every client releases the noisy sum of the clipped gradients of all its records, and the server adds
    the sums up. That is a full-batch step on the records of all clients, whoever holds which, with the noise of
    `budget.clients` releases.

    Attributes:
        recipe: the name of the recipe.
        settings: the plan of features and schedule; its steps are the rounds.

    >>> from gnomon.recipes import best
    >>> plan = FederatedPlan("fed-best", best(shape=(4,), classes=2, records=1000, target_epsilon=1.0))
    >>> plan.schedule.steps == plan.settings.schedule.steps
    True
    """

    recipe: str
    settings: Plan

    @property
    def budget(self) -> Budget:
        """The public facts that the recipe started from."""
        return self.settings.budget

    @property
    def features(self) -> Pipeline:
        """The features, with the whitening that the budget allows."""
        return self.settings.features

    @property
    def schedule(self) -> Schedule:
        """The settings of the private part; one step is one round."""
        return self.settings.schedule

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the public records."""
        return self.settings.warnings

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """All settings that the recipe chose, with the reasons."""
        budget = self.budget
        noise = f"{budget.records} records / (noise {budget.noise:.3g} of one release x sqrt({budget.clients} clients))"
        reasons = [Reason("rho", f"{budget.signal:.4g}", noise)]
        for reason in self.settings.reasons[1:]:
            if reason.setting == "sampler":
                reasons += [
                    Reason("method", "fedavg", "one full-batch step in a round is FedSGD: the step of a central run"),
                    Reason("client-weights", "size", "by declared records: every record counts alike"),
                    Reason("sampler", "full", "a client releases the noisy sum over all its records"),
                    Reason("steps-per-round", "1", "clients do not drift apart, however skewed the partition is"),
                ]
            elif reason.setting == "epochs":
                reasons.append(Reason("rounds", reason.value, reason.why))
            else:
                reasons.append(reason)
        return tuple(reasons)

    def explain(self) -> str:
        """Return the settings and the reasons as a table."""
        return as_table(self.reasons)


def resolve_federated(
    choice: Choice, features: Pipeline, budget: Budget, classes: int, warnings: Sequence[str] = ()
) -> FederatedPlan:
    """Return the plan of the recipe `fed-best` for computed public features.

    Args:
        choice: the features that were chosen.
        features: the features, not whitened yet.
        budget: the budget, with the records and the number of all clients.
        classes: the number of classes.
        warnings: warnings about the public records.

    >>> from gnomon.data import Records
    >>> from gnomon.features import Facts, pipeline
    >>> from gnomon.recipes import choose
    >>> import torch
    >>> public = Records(torch.rand(100, 8, generator=torch.Generator().manual_seed(0)), torch.arange(100) % 2)
    >>> budget = Budget(records=4000, epsilon=1.0, delta=1e-5, clients=4)
    >>> facts = Facts((8,), public)
    >>> plan = resolve_federated(choose("best", facts), pipeline("scaled", facts), budget, classes=2)
    >>> print(plan.explain().splitlines()[0])
    rho                   535.9         4000 records / (noise 3.73 of one release x sqrt(4 clients))
    """
    return FederatedPlan("fed-best", resolve("best", choice, features, budget, classes, warnings))
