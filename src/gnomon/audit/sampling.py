"""The sampler: does every record join a step as often, and as independently, as is accounted for?"""

from __future__ import annotations

import torch
from scipy import stats
from torch import Tensor

from gnomon.accounting import FullBatch, Shuffled, TruncatedPoisson
from gnomon.audit.bench import Probe, probe_loss
from gnomon.audit.claim import Claim
from gnomon.audit.findings import Finding
from gnomon.audit.parts import LAW
from gnomon.training import Trainer

STEPS = 300


def sampling(trainer: type[Trainer], claim: Claim, steps: int = STEPS) -> list[Finding]:
    """Draws batches with a Trainer of the given class and tests who is in them.

    >>> from gnomon.accounting import Poisson
    >>> found = sampling(Trainer, Claim(1.0, Poisson(0.1), 100, 1e-5))
    >>> [one.what for one in found if not one.ok]
    []
    """
    # so many that some hundred records are expected in two steps running
    records = min(max(1000, int(200 / (claim.sampler.rate**2 * steps))), 20_000)
    if isinstance(claim.sampler, TruncatedPoisson):
        records = claim.sampler.dataset_size
        steps = max(20, min(steps, 10**7 // records))
    if isinstance(claim.sampler, Shuffled):
        steps = 5 * claim.sampler.steps_per_epoch
    table = presence(trainer, claim, records, steps)
    if isinstance(claim.sampler, FullBatch):
        return [_exactly("everybody in every step", float(table.mean()), 1.0)]
    if isinstance(claim.sampler, Shuffled):
        epochs = table.reshape(5, -1, records).sum(1)
        ends = {"most": float(epochs.max()), "fewest": float(epochs.min())}
        return [_exactly(f"{name} times in an epoch", value, 1.0) for name, value in ends.items()]
    q = claim.sampler.rate
    found = []
    if isinstance(claim.sampler, TruncatedPoisson):
        most, largest = claim.sampler.max_batch_size, float(table.sum(1).max())
        found.append(Finding("Q", "largest batch", largest, f"at most {most}", largest <= most))
        if stats.binom.sf(most, records, q) * steps > LAW:
            return found  # batches are cut often: they are no longer Poisson, and not accounted as such
    return [*found, *_poisson(table, q)] if q < 1 else [_exactly("everybody in every step", float(table.mean()), 1.0)]


def presence(trainer: type[Trainer], claim: Claim, records: int, steps: int) -> Tensor:
    """Who is in which step, (steps, records), as a Trainer's batches show it."""
    model = Probe(2)
    # a record is known by its target: the probe's loss does not look at it
    copied = trainer(
        model, probe_loss, torch.optim.SGD(model.parameters(), lr=1.0), sampler=claim.sampler,
        expected_batch_size=1.0, noise_multiplier=claim.noise_multiplier, target_delta=1e-20, steps=steps,
        progress=False,
    )  # fmt: skip
    table = torch.zeros(steps, records, dtype=torch.float64)
    data = torch.ones(records, 2), torch.arange(records)
    for step, (_, names) in enumerate(copied.batches(data)):
        table[step] = torch.bincount(names, minlength=records)
    return table


def _poisson(table: Tensor, q: float) -> list[Finding]:
    """Tests of independent coins with probability q."""
    steps, records = table.shape
    total = int(table.sum())
    counts = float(((table.sum(0) - steps * q).square() / (steps * q * (1 - q))).sum())
    sizes = float(((table.sum(1) - records * q).square() / (records * q * (1 - q))).sum())
    again, twice = float((table[1:] * table[:-1]).sum()), records * (steps - 1) * q * q
    # neighbouring products share a coin
    spread = twice * (1 - q * q) + 2 * records * (steps - 2) * (q**3 - q**4)
    running = 2 * stats.norm.sf(abs(again - twice) / spread**0.5) if twice > 100 else _by_chance(again, twice)
    tests = {
        "joins in all, p": float(stats.binomtest(total, steps * records, q).pvalue),
        "counts of each record, p": _two_sided(counts, records),
        "variance of the batch size, p": _two_sided(sizes, steps),
        "in two steps running, p": float(running),
        "nobody twice in a batch": 1.0 if float(table.max()) <= 1 else 0.0,
    }
    return [Finding("Q", what, p, f"at least {LAW:g}", p >= LAW) for what, p in tests.items()]


def _two_sided(value: float, freedom: int) -> float:
    return float(2 * min(stats.chi2.cdf(value, freedom), stats.chi2.sf(value, freedom)))


def _by_chance(count: float, mean: float) -> float:
    return min(1.0, 2 * min(float(stats.poisson.cdf(count, mean)), float(stats.poisson.sf(count - 1, mean))))


def _exactly(what: str, value: float, wanted: float) -> Finding:
    return Finding("Q", what, value, f"exactly {wanted:g}", value == wanted)
