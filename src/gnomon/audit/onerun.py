"""Privacy auditing with one training run (Steinke, Nasr and Jagielski 2023).

A fair coin decides for each canary whether it is trained on; the attack guesses the coins from the final weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gnomon.accounting import Sampling
from gnomon.audit.attack_data import Probe, probe_loss
from gnomon.audit.bounds import one_run_epsilon
from gnomon.audit.claim import Claim
from gnomon.audit.findings import Scores
from gnomon.errors import SettingError
from gnomon.methods import Method, dp_sgd
from gnomon.release import NoiseSource
from gnomon.training import Trainer

GUESSED_FRACTION = 0.2
"""Fraction of the canaries that are guessed: those with the highest and the lowest scores."""


@dataclass(frozen=True)
class OneRun:
    """The result of the attack on one run.

    The bound assumes nothing about the noise or about single steps, and is weaker for it.

    >>> scores, included = torch.arange(100.0), torch.arange(100) >= 50
    >>> run = guess_membership(scores, included, delta=1e-5, alpha=0.05)
    >>> run.correct, round(run.epsilon, 2)
    (20, 1.82)
    """

    canaries: int
    guesses: int
    correct: int
    epsilon: float
    """Lower bound on epsilon."""
    scores: Scores


def one_run(
    claim: Claim,
    *,
    method: Method | None = None,
    canaries: int = 1000,
    size: int | None = None,
    alpha: float = 1e-3,
    trainer: type[Trainer] = Trainer,
    max_physical_batch_size: int | None = None,
    noise: NoiseSource | None = None,
    seed: int = 0,
) -> OneRun:
    """Train the probe for the whole claimed run on randomly included canaries, and guess which were included.

    Args:
        claim: the claim under audit.
        method: the method of the run (default: DP-SGD).
        canaries: the number of canaries.
        size: the number of parameters of the probe. By default each canary has a parameter of its own; in a smaller
            probe canaries are random directions. Public records of a method must have this many features.
        alpha: the probability with which the lower bound may exceed the true epsilon.
        trainer: the class of the Trainer.
        max_physical_batch_size: the largest physical batch of the run.
        noise: the noise source of the run (default: a secure source).
        seed: seed of the coins and of random directions.

    Raises:
        SettingError: the number of canaries does not fit the sampling scheme.

    >>> from gnomon.accounting import FullBatch
    >>> broken = one_run(Claim(0.05, FullBatch(), 1, 1e-5), canaries=100)
    >>> broken.correct, broken.guesses
    (20, 20)
    """
    included, generator = draw_membership(claim.sampler, canaries, seed)
    model = Probe(size or canaries)
    run = trainer(
        model, probe_loss, torch.optim.SGD(model.parameters(), lr=1.0), method=method or dp_sgd(),
        sampler=claim.sampler, expected_batch_size=1.0, noise_multiplier=claim.noise_multiplier,
        target_delta=claim.delta, steps=claim.steps, adjacency=claim.adjacency,
        max_physical_batch_size=max_physical_batch_size, noise=noise, progress=False,
    )  # fmt: skip
    rows = torch.randn(canaries, model.size, generator=generator) if model.size < canaries else torch.eye(model.size)
    gradients = 1000 * rows[:canaries] / rows[:canaries].norm(dim=1, keepdim=True)
    run.fit((gradients[included], torch.zeros(int(included.sum()))))
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return guess_membership(-(gradients @ weights), included, claim.delta, alpha)


def draw_membership(sampler: Sampling, canaries: int, seed: int = 0) -> tuple[Tensor, torch.Generator]:
    """Return which canaries are included, by fair coins, and the generator for all further random choices.

    >>> from gnomon.accounting import FixedSize
    >>> draw_membership(FixedSize(64), 100)
    Traceback (most recent call last):
    gnomon.errors.SettingError: whole_run = 100 is invalid: 50 of the canaries are training records, and the sampler \
cannot draw from them (batch_size = 64 is invalid; expected at most the 50 records of the data set)
    """
    draw = torch.Generator().manual_seed(seed)
    coins = torch.rand(canaries, generator=draw) < 0.5
    included = int(coins.sum())
    try:
        sampler.check_records(included)
    except SettingError as error:
        message = (
            f"whole_run = {canaries} is invalid: {included} of the canaries are training records, and the sampler "
            f"cannot draw from them ({error})"
        )
        raise SettingError.with_message(message, name="whole_run", value=canaries) from None
    return coins, draw


def guess_membership(scores: Tensor, included: Tensor, delta: float, alpha: float) -> OneRun:
    """Guess membership from scores that are higher for included canaries, and return the bound on epsilon.

    The number of guesses is fixed beforehand, as the bound requires.
    """
    each = max(1, int(GUESSED_FRACTION * len(included) / 2))
    order = scores.argsort()
    correct = int(included[order[-each:]].sum()) + int((~included[order[:each]]).sum())
    epsilon = one_run_epsilon(correct, 2 * each, len(included), delta, alpha)
    separated = Scores(scores[included].double(), scores[~included].double())
    return OneRun(len(included), 2 * each, correct, epsilon, separated)
