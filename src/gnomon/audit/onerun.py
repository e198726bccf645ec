"""A whole run attacked at once: canaries in or out by a coin, guesses from the final weights (Steinke et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gnomon.accounting import Sampling
from gnomon.audit.bench import Probe, probe_loss
from gnomon.audit.bounds import one_run_epsilon
from gnomon.audit.claim import Claim
from gnomon.audit.parts import Scores
from gnomon.errors import SettingError
from gnomon.methods import Method, dp_sgd
from gnomon.release import NoiseSource
from gnomon.training import Trainer

GUESSED = 0.2
"""The share of canaries that a guess is made about: those with the highest and lowest scores."""


@dataclass(frozen=True)
class OneRun:
    """What the attack on a run gave. Needs no law of the noise and no knowledge of a step, and proves less for it.

    >>> scores, coins = torch.arange(100.0), torch.arange(100) >= 50
    >>> found = judged(scores, coins, delta=1e-5, alpha=0.05)
    >>> found.right, round(found.epsilon, 2)
    (20, 1.82)
    """

    canaries: int
    guesses: int
    right: int
    epsilon: float
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
    """Trains the probe for the whole claimed run on canaries that a coin chose, and guesses the coins.

    The probe has `size` parameters, by default one for each canary, which then has it to itself; in a smaller one
    canaries are random directions. Methods that use public records need them to be as wide as the probe.

    >>> from gnomon.accounting import FullBatch
    >>> broken = one_run(Claim(0.05, FullBatch(), 1, 1e-5), canaries=100)
    >>> broken.right, broken.guesses
    (20, 20)
    """
    coins, draw = tossed(claim.sampler, canaries, seed)
    model = Probe(size or canaries)
    copied = trainer(
        model, probe_loss, torch.optim.SGD(model.parameters(), lr=1.0), method=method or dp_sgd(),
        sampler=claim.sampler, expected_batch_size=1.0, noise_multiplier=claim.noise_multiplier,
        target_delta=claim.delta, steps=claim.steps, adjacency=claim.adjacency,
        max_physical_batch_size=max_physical_batch_size, noise=noise, progress=False,
    )  # fmt: skip
    rows = torch.randn(canaries, model.size, generator=draw) if model.size < canaries else torch.eye(model.size)
    spikes = 1000 * rows[:canaries] / rows[:canaries].norm(dim=1, keepdim=True)
    copied.fit((spikes[coins], torch.zeros(int(coins.sum()))))
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return judged(-(spikes @ weights), coins, claim.delta, alpha)


def tossed(sampler: Sampling, canaries: int, seed: int = 0) -> tuple[Tensor, torch.Generator]:
    """Which canaries are in, and what the other random choices are drawn from.

    >>> from gnomon.accounting import FixedSize
    >>> tossed(FixedSize(64), 100)
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


def judged(scores: Tensor, coins: Tensor, delta: float, alpha: float) -> OneRun:
    """The bound for scores that are higher for canaries that are in. How many guesses are made is fixed beforehand."""
    each = max(1, int(GUESSED * len(coins) / 2))
    order = scores.argsort()
    right = int(coins[order[-each:]].sum()) + int((~coins[order[:each]]).sum())
    found = one_run_epsilon(right, 2 * each, len(coins), delta, alpha)
    return OneRun(len(coins), 2 * each, right, found, Scores(scores[coins].double(), scores[~coins].double()))
