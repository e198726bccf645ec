"""The parts of a step audit: S sensitivity, W law of the noise, E two data sets told apart, K many canaries."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from scipy import linalg, stats
from torch import Tensor

from gnomon.audit import bounds
from gnomon.audit.bench import Batch, Pair, singles
from gnomon.audit.findings import Finding
from gnomon.audit.target import Target
from gnomon.errors import SettingError

TOLERANCE = 1e-4
"""How far above the clip bound rounding may put a contribution."""

OUTSIDE = 1e-3
"""How long the part of a release outside the public subspace may be by rounding, in units of its length."""

APART = 0.05
"""How far from the sum of its records' contributions a batch may be by rounding, in units of the clip bound."""

LAW = 1e-6
"""How often each test of a law may fail by chance."""

MOST_COORDINATES = 2048
"""How many coordinates are compared with each other, at most; each alone is tested whatever their number."""

PARTS = 4
"""In how many physical batches the canaries come."""

LEAST_NEW = 0.8
"""A canary is scored if this much of its contribution is orthogonal to the others'."""


@dataclass(frozen=True)
class Moved:
    """What a record of a pair does to the noise-free sum."""

    pair: Pair
    before: Tensor
    """The sum without it, in white coordinates."""
    change: Tensor
    """The change, in white coordinates: what can be seen through the noise."""
    uncovered: float
    """How long the change is where there is no noise."""

    @property
    def length(self) -> float:
        """In units of the clip bound; infinite where no noise covers it, or where it is not a number."""
        found = float(self.change.norm())
        covered = self.uncovered <= OUTSIDE * max(1.0, found)
        return found if covered and math.isfinite(found) else math.inf


def refuse_randomness(target: Target, data: Batch) -> None:
    """Two sums of the same data with noise off must be one: else chance would be taken for a record's contribution."""
    first, second = (target.releases(data, 1, noisy=False)[0] for _ in range(2))
    apart, length = float(torch.dist(first, second)), float(first.norm())
    if apart > TOLERANCE * max(1.0, length):
        raise SettingError(
            "model",
            f"two sums of the same records without noise that are {apart:.2g} C apart",
            "a model and loss that draw nothing themselves, for the audit: dropout modules are switched off, "
            "calls such as F.dropout or torch.rand in a forward pass are not",
        )


def moved(target: Target, pairs: list[Pair]) -> list[Moved]:
    """Part S: for each pair, the difference of two sums with noise off."""
    known: dict[int, Tensor] = {}  # several pairs share the data set without the record
    found = []
    for pair in pairs:
        if id(pair.without) not in known:
            known[id(pair.without)] = target.releases(pair.without, 1, noisy=False)
        before = known[id(pair.without)]
        change = target.releases(pair.joined, 1, noisy=False) - before
        uncovered = float(target.view.outside(change)[0])
        found.append(Moved(pair, target.view(before)[0], target.view(change)[0], uncovered))
    return found


def sensitivity(what: str, length: float, target: Target) -> Finding:
    """Part S: no record moves the sum by more than the bound."""
    allowed = 1 + TOLERANCE + rounding(target)
    return Finding("S", f"one {what} moves the sum by", length, f"at most {allowed:.5g} C", length <= allowed)


def non_finite(found: list[Moved], target: Target) -> list[Finding]:
    """Part S: a record whose update is not finite contributes nothing, alone and beside others."""
    broken = [one for one in found if not one.pair.finite]
    if not broken:
        return []
    alone = max((one.length for one in broken if one.pair.without is None), default=0.0)
    beside = max((one.length for one in broken if one.pair.without is not None), default=0.0)
    allowed = TOLERANCE + rounding(target)  # another number of rows may be added up in another order
    return [
        Finding("S", "non-finite record alone moves the sum by", alone, "exactly 0 C", alone == 0),
        Finding("S", "non-finite record in a batch moves it by", beside, f"at most {allowed:.2g} C", beside <= allowed),
    ]


def accumulation(target: Target, batch: Batch) -> Finding:
    """Part S: in several physical batches, records add up to what each of them contributes alone.

    Each record alone is a single physical batch, so a clip weight that was meant for a record of another physical
    batch shows, in whichever order the records come.
    """
    empty = target.releases(None, 1, noisy=False)
    alone = sum((target.releases(one, 1, noisy=False) - empty for one in singles(batch)), empty)
    together = target.releases(batch, 1, noisy=False, parts=PARTS)
    apart = float(target.view(together - alone).norm())
    allowed = APART + (len(batch[0]) + 2) * rounding(target)
    what = f"{len(batch[0])} records, together and alone, differ by"
    return Finding("S", what, apart, f"at most {allowed:.2g} C", apart <= allowed)


def rounding(target: Target) -> float:
    """How much of a change between two sums may be rounding: they lie on a grid of 2^-20 deviations."""
    return 2.0**-20 * target.claim.noise_multiplier * float(target.view.parameters) ** 0.5


def law(
    name: str,
    noise: Tensor,
    uncovered: float,
    declared: float,
    exact: bool = True,
    tensors: Mapping[str, int] | None = None,
) -> list[Finding]:
    """Part W: the noise of some releases in white coordinates, (N, d), is what is declared.

    `uncovered` is the longest part of a release outside the public subspace. With `exact=False` there may be
    more noise than declared, as with noise before clipping, and only what would be too little is tested. `tensors` says
    how many coordinates each tensor of the model has, where coordinates are parameters.
    """
    if bad := numberless(name, noise):
        return bad
    some = some_coordinates(noise)
    tests = {
        "deviation / declared": bounds.scale(noise, LAW, declared),
        "deviation of each coordinate": bounds.coordinates(noise, LAW, declared),
        "singular values": bounds.singular_values(some, LAW, declared),
    }
    if tensors is not None and len(tensors) > 1:
        worst, band = bounds.blocks(noise, tensors, LAW, declared)
        tests[f"deviation of {worst}"] = band
    if not exact:
        tests = {what: bounds.Band(b.smallest, b.largest, b.low, math.inf) for what, b in tests.items()}
    tests["likeness of two coordinates"] = bounds.likeness(some.T, LAW)
    found = [Finding.of("W", f"{name}: {what}", band) for what, band in tests.items()]
    if exact:
        sample = some.flatten()[: 10**5].numpy() / declared
        p = float(stats.kstest(sample, "norm").pvalue)
        found.append(Finding("W", f"{name}: normal law, p", p, f"at least {LAW:g}", p >= LAW))
    length = float(noise.norm(dim=1).max())
    ok = uncovered <= OUTSIDE * max(1.0, length)
    return [*found, Finding("W", f"{name}: outside the subspace", uncovered, f"at most {OUTSIDE:g} of it", ok)]


def together(noise: Tensor, alpha: float, declared: float) -> list[Finding]:
    """Part W for all releases: no draw is used twice, for whichever data sets, and the deviation is not too small.

    The second has the confidence of a lower bound and is its other half: together with S it gives mu.
    """
    most = bounds.sigma_at_most(noise, alpha) / declared
    return [
        Finding.of("W", "all: likeness of two steps", bounds.likeness(some_coordinates(noise), LAW)),
        Finding("W", "all: deviation is at most", most, "at least 1 of declared", most >= 1),
    ]


def numberless(name: str, releases: Tensor) -> list[Finding]:
    """A finding if some of what was released are not numbers: whatever else holds, that is no noise.

    >>> [one.ok for one in numberless("all", torch.tensor([[math.nan]]))]
    [False]
    """
    count = int((~torch.isfinite(releases)).sum())
    return [Finding("W", f"{name}: values that are no numbers", count, "none", False)] if count else []


def some_coordinates(noise: Tensor) -> Tensor:
    """All coordinates, or as many as can be compared with each other, drawn afresh each time."""
    if noise.shape[1] <= MOST_COORDINATES:
        return noise
    draw = torch.Generator()
    draw.seed()
    return noise[:, torch.randperm(noise.shape[1], generator=draw)[:MOST_COORDINATES]]


@dataclass(frozen=True)
class Scores:
    """What an observer sees with and without a canary, in units of the clip bound; the shift is the canary's."""

    inside: Tensor
    outside: Tensor


def scores(found: Moved, without: Tensor, joined: Tensor) -> Scores:
    """Part E: releases on both data sets, in white coordinates, along the change that the record makes."""
    length = float(found.change.norm())
    direction = found.change / length if length > 0 else found.change
    return Scores((joined - found.before) @ direction, (without - found.before) @ direction)


@dataclass(frozen=True)
class Canaries:
    """Part K: several records whose contributions are orthogonal enough to be looked for one by one."""

    data: Batch
    lengths: list[float]
    """What each moves alone, in units of the clip bound."""
    directions: Tensor
    """Orthonormal, (K, d), in white coordinates."""
    shifts: Tensor
    """How far each canary reaches along its own direction, (K,)."""
    blanks: Tensor
    """As many directions that no canary has."""
    sum: Tensor
    """The noise-free sum of all."""

    def scores(self, rows: Tensor) -> Scores:
        """The scores of all canaries in each release; the observer knows all records but the one looked for."""
        seen = rows - self.sum
        inside = seen @ self.directions.T + self.shifts
        return Scores(inside.flatten(), (seen @ self.blanks.T).flatten())


def canaries(target: Target, batch: Batch) -> Canaries | None:
    """Measures canaries one by one with noise off and keeps those with a direction of their own."""
    empty = target.view(target.releases(None, 1, noisy=False))[0]
    alone = torch.stack([target.view(target.releases(one, 1, noisy=False))[0] - empty for one in singles(batch)])
    if not bool(torch.isfinite(alone).all()):
        return None
    factor, triangle, order = linalg.qr(alone.T.numpy(), mode="economic", pivoting=True)
    own = np.abs(np.diag(triangle))
    kept = int((own >= LEAST_NEW * max(own[0], 1e-12)).sum())
    kept = min(kept, target.view.size // 2)
    if kept == 0:
        return None
    chosen = torch.from_numpy(np.array(order[:kept]))
    signs = np.sign(np.diag(triangle)[:kept])
    directions = torch.from_numpy((factor[:, :kept] * signs).T.copy())
    blanks = torch.randn(kept, target.view.size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    blanks = torch.linalg.qr((blanks - blanks @ directions.T @ directions).T).Q.T
    data = batch[0][chosen], batch[1][chosen]
    together = target.view(target.releases(data, 1, noisy=False, parts=PARTS))[0]
    lengths = alone.norm(dim=1).tolist()
    return Canaries(data, lengths, directions, torch.from_numpy(own[:kept]), blanks, together)
