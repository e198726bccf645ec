"""The outcome of a run."""

from __future__ import annotations

from dataclasses import dataclass, field

from gnomon.accounting import Epsilon
from gnomon.errors import StateError
from gnomon.training.metrics import Metrics


class BudgetExhausted(StateError):
    """One more step would cost more than the target epsilon allows.

    >>> raise BudgetExhausted("after 10 steps")
    Traceback (most recent call last):
    gnomon.training.result.BudgetExhausted: after 10 steps
    """


@dataclass
class TrainingResult:
    """The outcome of `Trainer.fit`.

    >>> from gnomon.accounting import epsilon
    >>> TrainingResult(0, epsilon(noise_multiplier=1.0, sample_rate=0.1, steps=0, delta=1e-5), "interrupted").history
    []
    """

    steps: int
    epsilon: Epsilon
    stopped: str
    """Why training stopped: "finished", "budget" or "interrupted"."""
    history: list[Metrics] = field(default_factory=list)
