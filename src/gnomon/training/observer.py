"""What an observer of training gets to see: one step, before anything is released. Private."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gnomon.methods import Method
from gnomon.release import Admitted
from gnomon.subspaces import Basis, StepContext
from gnomon.updates import Updates


@dataclass(frozen=True)
class StepView:
    """One step as it happens, for the data holder only: updates are private until they have been through the door.

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
    method: Method
    basis: Basis
    updates: Updates
    admitted: Admitted
    """Weights and norms with which the door let them in."""
    max_grad_norm: float
    noise_multiplier: float
    expected_batch_size: float


Observer = Callable[[StepView], None]
"""Is called once a step, before the release."""
