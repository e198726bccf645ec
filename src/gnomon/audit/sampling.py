"""The sampler: does every record join a step as often, and as independently, as is accounted for?"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy import special, stats
from torch import Tensor

from gnomon.audit import bounds
from gnomon.audit.bench import Probe, probe_loss
from gnomon.audit.claim import Claim
from gnomon.audit.findings import Finding
from gnomon.audit.parts import LAW
from gnomon.release import NoiseSource
from gnomon.training import Trainer

STEPS = 300


def sampling(
    trainer: type[Trainer], claim: Claim, steps: int = STEPS, noise: NoiseSource | None = None
) -> list[Finding]:
    """Draws batches with a Trainer of the given class and source of randomness, and tests who is in them.

    >>> from gnomon.accounting import Poisson
    >>> found = sampling(Trainer, Claim(1.0, Poisson(0.1), 100, 1e-5))
    >>> [one.what for one in found if not one.ok]
    []
    """
    law, q = claim.sampler.draw_law(), claim.sampler.rate
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
        return [_exactly(f"{name} times in an epoch", value, 1.0) for name, value in ends.items()]
    if law.batch_size is not None:
        return _fixed(table, law.batch_size)
    found = []
    if law.max_batch_size is not None:
        most, largest = law.max_batch_size, float(table.sum(1).max())
        found.append(Finding("Q", "largest batch", largest, f"at most {most}", largest <= most))
        if stats.binom.sf(most, records, q) * steps > LAW:
            return found  # batches are cut often: they are no longer Poisson, and not accounted as such
    return [*found, *_poisson(table, q)] if q < 1 else [_exactly("everybody in every step", float(table.mean()), 1.0)]


def presence(
    trainer: type[Trainer], claim: Claim, records: int, steps: int, noise: NoiseSource | None = None
) -> Tensor:
    """Who is in which step, (steps, records), as a Trainer's batches show it."""
    model = Probe(2)
    # a record is known by its target: the probe's loss does not look at it
    copied = trainer(
        model, probe_loss, torch.optim.SGD(model.parameters(), lr=1.0), sampler=claim.sampler,
        expected_batch_size=1.0, noise_multiplier=claim.noise_multiplier, target_delta=1e-20, steps=steps,
        noise=noise, progress=False,
    )  # fmt: skip
    table = torch.zeros(steps, records, dtype=torch.float64)
    data = torch.ones(records, 2), torch.arange(records)
    for step, (_, names) in enumerate(copied.batches(data)):
        table[step] = torch.bincount(names, minlength=records)
    return table


def _poisson(table: Tensor, q: float) -> list[Finding]:
    """Tests of independent coins with probability q. Each p is exact or an upper bound, however few joins there are."""
    steps, records = table.shape
    counts, sizes = table.sum(0), table.sum(1)
    again = float((table[1:] * table[:-1]).sum())
    tests = {
        "joins in all, p": float(stats.binomtest(int(table.sum()), steps * records, q).pvalue),
        "counts of each record, p": _spread(counts, steps, q),
        "most and least drawn record, p": _ends(counts, steps, q),
        "variance of the batch size, p": _spread(sizes, records, q),
        "in two steps running, p": bounds.by_chance(
            again, records * (steps - 1) * q * q, lambda t: records * _running(t, steps, q)
        ),
        "nobody twice in a batch": 1.0 if float(table.max()) <= 1 else 0.0,
    }
    return [_likely(what, p) for what, p in tests.items()]


def _fixed(table: Tensor, size: int) -> list[Finding]:
    """Tests of batches of so many different records, each drawn afresh from all of them."""
    steps, records = table.shape
    again = float((table[1:] * table[:-1]).sum())
    # how many of a batch were in the one before: hypergeometric, whatever that one was
    possible = np.arange(size + 1)
    log_pmf = stats.hypergeom.logpmf(possible, records, size, size)
    ends = {"largest batch": float(table.sum(1).max()), "smallest batch": float(table.sum(1).min())}
    return [
        *(_exactly(what, value, size) for what, value in ends.items()),
        _likely("nobody twice in a batch", 1.0 if float(table.max()) <= 1 else 0.0),
        _likely("most and least drawn record, p", _ends(table.sum(0), steps, size / records)),
        _likely("in two steps running, p", bounds.by_chance(
            again, (steps - 1) * size * size / records,
            lambda t: (steps - 1) * float(special.logsumexp(log_pmf + t * possible)),
        )),
    ]  # fmt: skip


def _spread(counts: Tensor, trials: int, q: float) -> float:
    """The sum of squared standardised counts, each of so many coins, against its exact law."""
    possible = np.arange(trials + 1)
    squares = np.square(possible - trials * q) / (trials * q * (1 - q))
    log_pmf = stats.binom.logpmf(possible, trials, q)
    value = float((counts - trials * q).square().sum() / (trials * q * (1 - q)))
    return bounds.by_chance(value, len(counts), lambda t: len(counts) * float(special.logsumexp(log_pmf + t * squares)))


def _ends(counts: Tensor, trials: int, q: float) -> float:
    """How probable the largest and the smallest of some counts are at most, whatever ties there are between them."""
    law = stats.binom(trials, q)
    ends = float(law.cdf(float(counts.min()))), float(law.sf(float(counts.max()) - 1))
    return min(1.0, 2 * len(counts) * min(ends))


def _running(t: float, steps: int, q: float) -> float:
    """log E exp(t X), where X is how often a coin of probability q shows heads twice running in so many throws."""
    tails, heads, found = 1 - q, q, 0.0
    for _ in range(steps - 1):
        tails, heads = (tails + heads) * (1 - q), (tails + heads * math.exp(t)) * q
        whole = tails + heads
        tails, heads, found = tails / whole, heads / whole, found + math.log(whole)
    return found


def _likely(what: str, p: float) -> Finding:
    return Finding("Q", what, p, f"at least {LAW:g}", p >= LAW)


def _exactly(what: str, value: float, wanted: float) -> Finding:
    return Finding("Q", what, value, f"exactly {wanted:g}", value == wanted)
