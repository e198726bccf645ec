"""One number for one accountant, and which looser bound stands in where the tight one is out of reach."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from gnomon.accounting import gaussian, pld, renyi
from gnomon.accounting.composition import GaussianComposition
from gnomon.accounting.sketch import SHARE
from gnomon.errors import SettingError
from gnomon.sampling.adjacency import Adjacency
from gnomon.sampling.scheme import Sampling
from gnomon.sampling.truncated_poisson import TruncatedPoisson

APPROXIMATE = "the Gaussian limit is an approximation and may lie below the true epsilon: not a bound"
LOOSER = "PLD is out of reach for these settings; this is a looser bound"


@dataclass(frozen=True)
class Bound:
    """An epsilon and where it came from."""

    value: float
    accountant: str
    note: str = ""
    guarantee: bool = True


def bound(accountant: str, run: GaussianComposition, coarser: float = 1.0) -> Bound:
    """Epsilon by the named accountant. `coarser` widens the PLD grid, for searches.

    >>> from gnomon.sampling.poisson import Poisson
    >>> bound("rdp-classic", GaussianComposition(Poisson(0.025), 10.0, 3200, 1e-5, "add-remove")).accountant
    'RDP classic'
    """
    supported(accountant, run.sampler, run.adjacency)
    name, answer = ACCOUNTANTS[accountant]
    if run.steps == 0:
        return Bound(0.0, name, "no steps")
    if run.noise_multiplier == 0:
        return Bound(math.inf, name, "no noise")
    if run.expansion is not None:
        return _expanded(accountant, run, coarser)
    return (_known if _lasting(run.sampler) else _asked)(answer, run, coarser)


def _lasting(sampler: Sampling) -> bool:
    """Whether a sampler cannot change behind its name. One of somebody's own may."""
    frozen = getattr(getattr(type(sampler), "__dataclass_params__", None), "frozen", False)
    return bool(frozen) and type(sampler).__module__.startswith("gnomon.")


def _asked(answer: Callable[[GaussianComposition, float], Bound], run: GaussianComposition, coarser: float) -> Bound:
    return answer(run, coarser)


@lru_cache(maxsize=1024)
def _known(answer: Callable[[GaussianComposition, float], Bound], run: GaussianComposition, coarser: float) -> Bound:
    """The same question is answered from memory: clients, seeds and cells of a study often share their settings."""
    return _asked(answer, run, coarser)


def _expanded(accountant: str, run: GaussianComposition, coarser: float) -> Bound:
    """A sketched sum: exact where that is known, else with a stretch that all steps keep to but for part of delta."""
    assert run.expansion is not None
    if not run.sampler.amplified:
        exact = run.expansion.exact(run.multiplier, run.uses, run.delta, coarser)
        if exact is not None:
            return Bound(exact, "exact sketched Gaussian", run.expansion.note)
    factor = run.expansion.factor(SHARE * run.delta / run.uses)
    plain = replace(run, noise_multiplier=run.noise_multiplier / factor, delta=(1 - SHARE) * run.delta, expansion=None)
    found = bound(accountant, plain, coarser)
    note = "; ".join(filter(None, [run.expansion.note, found.note]))
    return replace(found, accountant=f"{found.accountant}, stretch {factor:.3f} counted", note=note)


def supported(accountant: str, sampler: Sampling, adjacency: Adjacency) -> None:
    """An error if the accountant cannot answer for this sampler and adjacency.

    >>> from gnomon.sampling.poisson import Poisson
    >>> supported("pld", Poisson(0.1), "replace-one")
    """
    if accountant == "pld" or not sampler.amplified:
        return
    if isinstance(sampler, TruncatedPoisson):
        raise SettingError("accountant", accountant, "'pld', the only one for truncated Poisson sampling")
    if adjacency == "replace-one":
        allowed = "'pld' for Poisson sampling with replace-one, or adjacency='add-remove' or 'zero-out'"
        raise SettingError("accountant", accountant, allowed)


def _pld(run: GaussianComposition, coarser: float) -> Bound:
    """The PLD bound; where the grid is too wide or none will do, the smallest of all valid bounds."""
    if not run.sampler.amplified:
        return Bound(gaussian.exact(run.multiplier, run.uses, run.delta), "exact Gaussian")
    if -math.expm1(run.steps * math.log1p(-min(run.sampler.rate, 1 - 1e-16))) <= run.delta:
        return Bound(0.0, "PLD", "delta covers the chance that a record is ever drawn")
    found = Bound(math.inf, "PLD")
    grid = pld.grid(run, coarser)
    if grid is not None:
        found = Bound(pld.epsilon(run, grid.interval), "PLD")
        if not grid.widened and math.isfinite(found.value):
            return found
    # A record that takes another one's place in a full batch moves the sum by 2.
    truncated = isinstance(run.sampler, TruncatedPoisson)
    multiplier = run.noise_multiplier / 2 if truncated else run.multiplier
    plain = gaussian.exact(multiplier, run.steps, run.delta)
    others = [Bound(plain, "Gaussian without amplification", LOOSER)]
    if not truncated and run.adjacency != "replace-one":
        others.append(Bound(_rdp(run).value, "RDP", LOOSER))
    return min([found, *others], key=lambda one: one.value)


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
