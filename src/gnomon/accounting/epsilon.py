"""The epsilon of a run."""

from __future__ import annotations

from typing import Literal, get_args

from gnomon import validate
from gnomon.accounting import bounds
from gnomon.accounting.gaussian import GaussianComposition
from gnomon.accounting.result import Epsilon
from gnomon.accounting.sketch import Expansion
from gnomon.errors import SettingError
from gnomon.sampling.poisson import Poisson
from gnomon.sampling.scheme import Sampling

Accountant = Literal["pld", "rdp", "rdp-classic", "gdp"]
"""The accounting methods; `epsilon` describes them."""


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
    """Return the epsilon of `steps` noisy steps: an upper bound, unless its `guarantee` is False.

    Args:
        noise_multiplier: The standard deviation of the noise, in units of the clip bound.
        steps: The number of steps.
        delta: The delta of the guarantee.
        sample_rate: Short for `sampler=Poisson(sample_rate)`.
        sampler: The sampling scheme.
        accountant: The accounting method.

            - "pld": privacy loss distributions, tight; without amplification, the exact closed form. Where PLD cannot
              be computed (huge epsilon, delta below 1e-10, more than a million steps), a looser bound, which the
              result names.
            - "rdp": Renyi divergences with the improved conversion.
            - "rdp-classic": Renyi divergences with the classic conversion, as early papers report it.
            - "gdp": the Gaussian limit. With Poisson sampling an approximation, never a guarantee.
        adjacency: The adjacency relation; the sampler's default if None.
        expansion: For methods that sketch the sum before noise is added.

    Raises:
        SettingError: A setting is invalid, or the accountant has no bound for this sampler and adjacency.

    >>> epsilon(noise_multiplier=10.0, steps=3200, delta=1e-5, sample_rate=0.025)
    epsilon = 0.500 at delta = 1e-05 (add-remove, Poisson q = 0.025, PLD)
    """
    sampler = resolve_sampler(sample_rate, sampler)
    sigma = validate.non_negative("noise_multiplier", noise_multiplier)
    count = validate.whole("steps", steps, least=0)
    delta = validate.probability("delta", delta)
    relation = sampler.resolve_adjacency(adjacency)
    kind = parse_accountant(accountant)
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


def resolve_sampler(sample_rate: float | None, sampler: Sampling | None) -> Sampling:
    """Return the sampler, or Poisson sampling at `sample_rate`; exactly one of the two must be given.

    >>> resolve_sampler(0.1, None)
    Poisson(sample_rate=0.1)
    """
    if sampler is None and sample_rate is not None:
        return Poisson(sample_rate)
    if sample_rate is not None:
        message = f"set either sample_rate (= {sample_rate!r}) or sampler, not both"
        raise SettingError.with_message(message, name="sample_rate", value=sample_rate)
    if not isinstance(sampler, Sampling):
        allowed = "a sampler such as Poisson(0.01), FullBatch() or Shuffled(40), or sample_rate in its place"
        raise SettingError("sampler", sampler, allowed)
    return sampler


def parse_accountant(value: object) -> Accountant:
    """Return the value if it names an accountant, and raise SettingError otherwise.

    >>> parse_accountant("pld")
    'pld'
    """
    names: tuple[Accountant, ...] = get_args(Accountant)
    for name in names:
        if value == name:
            return name
    raise SettingError("accountant", value, " or ".join(map(repr, names)))
