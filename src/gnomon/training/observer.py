"""The view of a step that observers get before its release. All of it is private."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gnomon.release import Admitted
from gnomon.subspaces import Basis, StepContext
from gnomon.training.mechanism import Mechanism
from gnomon.updates import Updates


@dataclass(frozen=True)
class StepView:
    """One step before its release, for the data holder only: updates are private until the door has released their sum.

    With several physical batches it shows the first of them. An observer must not change anything it sees, nor
    draw from `context.randomness`.

    >>> import torch
    >>> from gnomon.release import SeededNoise
    >>> from gnomon.training import Trainer
    >>> model, seen = torch.nn.Linear(2, 2), []
    >>> trainer = Trainer(
    ...     model, torch.nn.CrossEntropyLoss(reduction="none"), torch.optim.SGD(model.parameters(), lr=0.5),
    ...     sample_rate=0.5, expected_batch_size=10, noise_multiplier=1.0, target_delta=1e-5, steps=3,
    ...     noise=SeededNoise(0), progress=False, observers=[lambda view: seen.append(view.context.step)])
    >>> _ = trainer.fit((torch.randn(20, 2), torch.randint(0, 2, (20,))))
    >>> seen
    [0, 1, 2]
    """

    context: StepContext
    """Model, loss and step."""
    mechanism: Mechanism
    """The method, bound, noise and divisor of the step."""
    basis: Basis
    updates: Updates
    """The update of each record, as the method computes it."""
    admitted: Admitted
    """The weights and norms with which the door admitted the updates."""


Observer = Callable[[StepView], None]
"""Called once per step, before the release."""
