"""The epsilon of a run."""

from __future__ import annotations

from typing import Literal, get_args

from gnomon import validate
from gnomon.accounting import bounds
from gnomon.accounting.composition import GaussianComposition
from gnomon.accounting.result import Epsilon
from gnomon.accounting.sketch import Expansion
from gnomon.errors import SettingError
from gnomon.sampling.poisson import Poisson
from gnomon.sampling.scheme import Sampling

Accountant = Literal["pld", "rdp", "rdp-classic", "gdp"]


def epsilon(
    *,
    noise_multiplier: float,
    steps: int,
    delta: float,
    sample_rate: float | None = None,
    sampler: Sampling | None = None,
    accountant: Accountant = "pld",
    adjacency: str | None = None,
    expansion: Expansion | None = None,
) -> Epsilon:
    """The privacy spent by `steps` noisy steps, as an upper bound unless `.guarantee` is False.

    `sample_rate=q` is short for `sampler=Poisson(q)`. Noise has standard deviation
    `noise_multiplier` times the clipping bound. Accountants:

    - "pld": privacy loss distributions, tight. Where there is no sampling, the exact closed form.
    - "rdp": Renyi divergences with the improved conversion.
    - "rdp-classic": integer orders and the classic conversion, as early papers report it.
    - "gdp": the Gaussian limit. With Poisson sampling an approximation, never a guarantee.

    Where "pld" is out of reach (enormous epsilon, delta below 1e-10, more than a million steps), a looser
    bound is given and named. `expansion` is for methods that sketch the sum before noise.

    >>> epsilon(noise_multiplier=10.0, steps=3200, delta=1e-5, sample_rate=0.025)
    epsilon = 0.500 at delta = 1e-05 (add-remove, Poisson q = 0.025, PLD)
    """
    sampler = chosen_sampler(sample_rate, sampler)
    sigma = validate.non_negative("noise_multiplier", noise_multiplier)
    count = validate.whole("steps", steps, least=0)
    delta = validate.probability("delta", delta)
    relation = sampler.adjacency(adjacency)
    kind = chosen_accountant(accountant)
    bound = bounds.bound(kind, GaussianComposition(sampler, sigma, count, delta, relation, expansion))
    return Epsilon(
        bound.value,
        delta=delta,
        adjacency=relation,
        sampler=sampler.name,
        accountant=bound.accountant,
        noise_multiplier=sigma,
        steps=count,
        guarantee=bound.guarantee,
        note=bound.note,
    )


def chosen_sampler(sample_rate: float | None, sampler: Sampling | None) -> Sampling:
    """The sampler that the two arguments stand for; exactly one of them is to be given.

    >>> chosen_sampler(0.1, None)
    Poisson(sample_rate=0.1)
    """
    if sampler is None and sample_rate is not None:
        return Poisson(sample_rate)
    if sample_rate is not None:
        raise SettingError("sample_rate", sample_rate, "either sample_rate or sampler, not both")
    if not isinstance(sampler, Sampling):
        allowed = "sample_rate=..., or a sampler such as Poisson(0.01), FullBatch() or Shuffled(40)"
        raise SettingError("sampler", sampler, allowed)
    return sampler


def chosen_accountant(value: object) -> Accountant:
    """The value, if it names an accountant.

    >>> chosen_accountant("pld")
    'pld'
    """
    for name in get_args(Accountant):
        if value == name:
            found: Accountant = name
            return found
    raise SettingError("accountant", value, " or ".join(map(repr, get_args(Accountant))))
