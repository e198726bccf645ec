"""The epsilon of a run by a named accountant, with looser bounds where the tight one cannot be computed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from gnomon.accounting import gaussian, pld, renyi
from gnomon.accounting.gaussian import GaussianComposition
from gnomon.accounting.sketch import SHARE
from gnomon.errors import SettingError
from gnomon.sampling.adjacency import Adjacency
from gnomon.sampling.registry import is_registered
from gnomon.sampling.scheme import Sampling

APPROXIMATE = "the Gaussian limit is an approximation and may lie below the true epsilon: not a bound"
LOOSER = "PLD is out of reach for these settings; this is a looser bound"


@dataclass(frozen=True)
class Bound:
    """An epsilon, the accountant that computed it, and whether it is an upper bound (`guarantee`)."""

    value: float
    accountant: str
    note: str = ""
    guarantee: bool = True


def bound(accountant: str, run: GaussianComposition, coarser: float = 1.0) -> Bound:
    """Return the epsilon of a run by the named accountant.

    Results are cached, unless the class of the sampler is defined outside Gnomon.

    Args:
        accountant: A key of `ACCOUNTANTS`.
        run: The settings of the run.
        coarser: A factor for the interval of the PLD grid: a larger one is faster and gives a looser upper bound.

    >>> from gnomon.sampling.poisson import Poisson
    >>> bound("rdp-classic", GaussianComposition(Poisson(0.025), 10.0, 3200, 1e-5, "add-remove")).accountant
    'RDP classic'
    """
    check_supported(accountant, run.sampler, run.adjacency)
    label, compute = ACCOUNTANTS[accountant]
    if run.steps == 0:
        return Bound(0.0, label, "no steps")
    if run.noise_multiplier == 0:
        return Bound(math.inf, label, "no noise")
    if run.expansion is not None:
        return _sketched(accountant, run, coarser)
    return _cached(accountant, run, coarser) if _is_immutable(run.sampler) else compute(run, coarser)


def _is_immutable(sampler: Sampling) -> bool:
    """Whether equal samplers always cost the same: a class defined outside Gnomon may be mutable despite its hash."""
    frozen = getattr(getattr(type(sampler), "__dataclass_params__", None), "frozen", False)
    return bool(frozen) and type(sampler).__module__.startswith("gnomon.")


@lru_cache(maxsize=1024)
def _cached(accountant: str, run: GaussianComposition, coarser: float) -> Bound:
    """Compute a bound once for all clients, seeds and cells of a study that share their settings."""
    _, compute = ACCOUNTANTS[accountant]
    return compute(run, coarser)


def _sketched(accountant: str, run: GaussianComposition, coarser: float) -> Bound:
    """Bound the epsilon of a sketched sum: exactly where a closed form exists, else with a stretch factor.

    A share of delta pays for the event that the sketch of any step stretches a change by more than the factor.
    """
    assert run.expansion is not None
    if not run.sampler.amplified:
        exact = run.expansion.exact(run.multiplier, run.uses, run.delta, coarser)
        if exact is not None:
            return Bound(exact, "exact sketched Gaussian", run.expansion.note)
    factor = run.expansion.factor(SHARE * run.delta / run.uses)
    plain = replace(run, noise_multiplier=run.noise_multiplier / factor, delta=(1 - SHARE) * run.delta, expansion=None)
    unsketched = bound(accountant, plain, coarser)
    note = "; ".join(filter(None, [run.expansion.note, unsketched.note]))
    return replace(unsketched, accountant=f"{unsketched.accountant}, stretch {factor:.3f} counted", note=note)


def check_supported(accountant: str, sampler: Sampling, adjacency: Adjacency) -> None:
    """Raise SettingError if the accountant has no bound for this sampler under this adjacency.

    >>> from gnomon.sampling.poisson import Poisson
    >>> check_supported("pld", Poisson(0.1), "replace-one")
    """
    overridden = type(sampler).sensitivity is not Sampling.sensitivity
    if sampler.amplified and overridden and not is_registered(sampler):
        raise SettingError.with_message(
            f"{type(sampler).__name__} is amplified and has a sensitivity of its own, which PLD would not count: "
            "register it in gnomon.sampling.registry with an event that includes the sensitivity",
            name="sampler",
            value=sampler,
        )
    if accountant == "pld" or sampler.poisson_rate(adjacency) is not None:
        return
    allowed = f"'pld', the only accountant for {sampler.name} with {adjacency}"
    supported = [name for name in sampler.adjacencies if sampler.poisson_rate(name) is not None]
    if supported:
        allowed += f"; or choose adjacency = {' or '.join(map(repr, supported))}"
    raise SettingError("accountant", accountant, allowed)


def _pld(run: GaussianComposition, coarser: float) -> Bound:
    """Return the PLD bound, or the smallest valid bound if the grid had to be widened or does not exist."""
    if not run.sampler.amplified:
        return Bound(gaussian.exact(run.multiplier, run.uses, run.delta), "exact Gaussian")
    if -math.expm1(run.steps * math.log1p(-min(run.sampler.rate, 1 - 1e-16))) <= run.delta:
        return Bound(0.0, "PLD", "delta covers the chance that a record is ever drawn")
    tight = Bound(math.inf, "PLD")
    grid = pld.grid(run, coarser)
    if grid is not None:
        tight = Bound(pld.epsilon(run, grid.interval), "PLD")
        if not grid.widened and math.isfinite(tight.value):
            return tight
    unamplified = gaussian.exact(run.multiplier, run.steps, run.delta)
    candidates = [tight, Bound(unamplified, "Gaussian without amplification", LOOSER)]
    if run.sampler.poisson_rate(run.adjacency) is not None:
        candidates.append(Bound(_rdp(run).value, "RDP", LOOSER))
    return min(candidates, key=lambda candidate: candidate.value)


def _rdp(run: GaussianComposition, coarser: float = 1.0) -> Bound:
    return Bound(renyi.improved(run.event(run.multiplier), run.steps, run.delta), "RDP")


def _classic(run: GaussianComposition, coarser: float) -> Bound:
    return Bound(renyi.classic(run.multiplier, run.uses, run.delta, run.sampler.rate), "RDP classic")


def _gdp(run: GaussianComposition, coarser: float) -> Bound:
    if not run.sampler.amplified:
        return Bound(gaussian.exact(run.multiplier, run.uses, run.delta), "exact Gaussian")
    limit = gaussian.limit(run.multiplier, run.steps, run.delta, run.sampler.rate)
    return Bound(limit, "GDP limit", APPROXIMATE, guarantee=False)


ACCOUNTANTS: dict[str, tuple[str, Callable[[GaussianComposition, float], Bound]]] = {
    "pld": ("PLD", _pld),
    "rdp": ("RDP", _rdp),
    "rdp-classic": ("RDP classic", _classic),
    "gdp": ("GDP", _gdp),
}
"""For each accountant its name in statements and the function that computes its bound."""
