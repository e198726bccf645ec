"""Tests of the sampler: records take part in steps with the declared probabilities, and independently (part Q)."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy import special, stats
from torch import Tensor

from gnomon.audit import bounds
from gnomon.audit.attack_data import Probe, probe_loss
from gnomon.audit.claim import Claim
from gnomon.audit.findings import FALSE_ALARM_RATE, Finding
from gnomon.release import NoiseSource
from gnomon.sampling import DrawLaw
from gnomon.sampling.registry import is_registered
from gnomon.training import Trainer

STEPS = 300
"""Default number of sampled steps."""


def check_sampling(
    trainer: type[Trainer], claim: Claim, steps: int = STEPS, noise: NoiseSource | None = None
) -> list[Finding]:
    """Draw batches with a Trainer of the given class, and test which records are in them.

    Each finding fails by chance with probability `FALSE_ALARM_RATE` at most.

    Args:
        trainer: the class of the Trainer whose sampler is tested.
        claim: the claim, which declares the sampling scheme.
        steps: the number of batches to draw; some schemes need more or fewer.
        noise: the randomness of the sampler (default: a secure source).

    >>> from gnomon.accounting import Poisson
    >>> findings = check_sampling(Trainer, Claim(1.0, Poisson(0.1), 100, 1e-5))
    >>> [finding.what for finding in findings if not finding.ok]
    []
    """
    # a scheme that is not registered is tested as Poisson sampling: its own law is not evidence for its accounting
    law = claim.sampler.draw_law() if is_registered(claim.sampler) else DrawLaw()
    q = claim.sampler.rate
    # enough records that several hundred of them are expected to be in two consecutive steps
    records = min(max(1000, int(200 / (q**2 * steps))), 20_000)
    if law.records is not None:
        records = law.records
        steps = max(20, min(steps, 10**7 // records))
    if law.epoch is not None:
        steps = 5 * law.epoch
    table = presence(trainer, claim, records, steps, noise)
    if law.epoch is not None:
        epochs = table.reshape(5, -1, records).sum(1)
        ends = {"most": float(epochs.max()), "fewest": float(epochs.min())}
        return [_exactly(f"{name} participations in an epoch", value, 1.0) for name, value in ends.items()]
    if law.batch_size is not None:
        return _fixed(table, law.batch_size)
    found = []
    if law.max_batch_size is not None:
        most, largest = law.max_batch_size, float(table.sum(1).max())
        found.append(Finding("Q", "largest batch", largest, f"at most {most}", largest <= most))
        if stats.binom.sf(most, records, q) * steps > FALSE_ALARM_RATE:
            return found  # batches are truncated often: they are not Poisson, and are not accounted for as such
    return (
        [*found, *_poisson(table, q)]
        if q < 1
        else [_exactly("fraction of records in each step", float(table.mean()), 1.0)]
    )


def presence(
    trainer: type[Trainer], claim: Claim, records: int, steps: int, noise: NoiseSource | None = None
) -> Tensor:
    """Return how often each record is in each step, (steps, records), as observed in a Trainer's batches."""
    model = Probe(2)
    # Targets number the records: the loss of the probe ignores them.
    sampled = trainer(
        model, probe_loss, torch.optim.SGD(model.parameters(), lr=1.0), sampler=claim.sampler,
        expected_batch_size=1.0, noise_multiplier=claim.noise_multiplier, target_delta=1e-20, steps=steps,
        noise=noise, progress=False,
    )  # fmt: skip
    table = torch.zeros(steps, records, dtype=torch.float64)
    data = torch.ones(records, 2), torch.arange(records)
    for step, (_, numbers) in enumerate(sampled.batches(data)):
        table[step] = torch.bincount(numbers, minlength=records)
    return table


def _poisson(table: Tensor, q: float) -> list[Finding]:
    """Test Poisson sampling: independent participation with probability q.

    Each p-value is exact or an upper bound, also if participations are rare.
    """
    steps, records = table.shape
    counts, sizes = table.sum(0), table.sum(1)
    repeats = float((table[1:] * table[:-1]).sum())
    tests = {
        "participations in total, p": float(stats.binomtest(int(table.sum()), steps * records, q).pvalue),
        "participations of each record, p": _spread(counts, steps, q),
        "most and least sampled record, p": _extremes(counts, steps, q),
        "variance of the batch size, p": _spread(sizes, records, q),
        "records in consecutive steps, p": bounds.chernoff_p_value(
            repeats, records * (steps - 1) * q * q, lambda t: records * _log_mgf_of_repeats(t, steps, q)
        ),
        "no record twice in a batch": 1.0 if float(table.max()) <= 1 else 0.0,
    }
    return [_p_value(what, p) for what, p in tests.items()]


def _fixed(table: Tensor, size: int) -> list[Finding]:
    """Test fixed-size sampling: each batch holds `size` different records, drawn independently of other batches."""
    steps, records = table.shape
    repeats = float((table[1:] * table[:-1]).sum())
    # The number of records of a batch that were in the batch before is hypergeometric, whatever that batch was.
    possible = np.arange(size + 1)
    log_pmf = stats.hypergeom.logpmf(possible, records, size, size)
    ends = {"largest batch": float(table.sum(1).max()), "smallest batch": float(table.sum(1).min())}
    return [
        *(_exactly(what, value, size) for what, value in ends.items()),
        _p_value("no record twice in a batch", 1.0 if float(table.max()) <= 1 else 0.0),
        _p_value("most and least sampled record, p", _extremes(table.sum(0), steps, size / records)),
        _p_value("records in consecutive steps, p", bounds.chernoff_p_value(
            repeats, (steps - 1) * size * size / records,
            lambda t: (steps - 1) * float(special.logsumexp(log_pmf + t * possible)),
        )),
    ]  # fmt: skip


def _spread(counts: Tensor, trials: int, q: float) -> float:
    """Return the p-value of the sum of squared standardised binomial counts, from its exact distribution."""
    possible = np.arange(trials + 1)
    squares = np.square(possible - trials * q) / (trials * q * (1 - q))
    log_pmf = stats.binom.logpmf(possible, trials, q)
    value = float((counts - trials * q).square().sum() / (trials * q * (1 - q)))

    def log_mgf(t: float) -> float:
        return len(counts) * float(special.logsumexp(log_pmf + t * squares))

    return bounds.chernoff_p_value(value, len(counts), log_mgf)


def _extremes(counts: Tensor, trials: int, q: float) -> float:
    """Return an upper bound on the p-value of the largest and the smallest count, whatever their dependence."""
    binomial = stats.binom(trials, q)
    tails = float(binomial.cdf(float(counts.min()))), float(binomial.sf(float(counts.max()) - 1))
    return min(1.0, 2 * len(counts) * min(tails))


def _log_mgf_of_repeats(t: float, steps: int, q: float) -> float:
    """Return log E exp(t X), where X is the number of consecutive pairs of heads in `steps` throws of a coin."""
    tails, heads, log_mgf = 1 - q, q, 0.0
    for _ in range(steps - 1):
        tails, heads = (tails + heads) * (1 - q), (tails + heads * math.exp(t)) * q
        total = tails + heads
        tails, heads, log_mgf = tails / total, heads / total, log_mgf + math.log(total)
    return log_mgf


def _p_value(what: str, p: float) -> Finding:
    return Finding("Q", what, p, f"at least {FALSE_ALARM_RATE:g}", p >= FALSE_ALARM_RATE)


def _exactly(what: str, value: float, expected: float) -> Finding:
    return Finding("Q", what, value, f"exactly {expected:g}", value == expected)
