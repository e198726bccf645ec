"""How long a run is, how much noise it needs, and how far its budget goes: settled before it starts."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

from gnomon import validate
from gnomon.accounting import Account, Expansion, Poisson, Sampling, noise_multiplier, steps_of, steps_per_epoch
from gnomon.accounting.epsilon import Accountant
from gnomon.errors import SettingError
from gnomon.methods import METHODS


@dataclass(frozen=True)
class Plan:
    """The declared numbers of a run. None of them is derived from the data."""

    sampler: Sampling
    steps_per_epoch: int
    steps: int
    delta: float
    account: Account
    affordable: float
    """How many steps the target epsilon pays for; infinite without a target."""

    @property
    def last(self) -> int:
        """The step after which to stop."""
        return int(min(self.steps, self.affordable))


def plan(
    *,
    sample_rate: float | None,
    sampler: Sampling | None,
    expected_batch_size: float,
    target_epsilon: float | None,
    target_delta: float,
    sigma: float | None,
    epochs: float | None,
    steps: int | None,
    accountant: Accountant,
    adjacency: str | None,
    expansion: Expansion | None = None,
) -> Plan:
    """Checks the settings and works out what is missing.

    >>> found = plan(sample_rate=0.025, sampler=None, expected_batch_size=250, target_epsilon=0.5,
    ...              target_delta=1e-5, sigma=None, epochs=80, steps=None, accountant="pld", adjacency=None)
    >>> found.steps, round(found.account.noise_multiplier, 1)
    (3200, 10.0)
    """
    delta = validate.probability("target_delta", target_delta)
    target = None if target_epsilon is None else validate.positive("target_epsilon", target_epsilon)
    sampling = _sampling(sample_rate, sampler)
    per_epoch = steps_per_epoch(sampling)
    count = _count(epochs, steps, sampling)
    _warn_of_large_delta(delta, expected_batch_size * max(per_epoch, 1 / sampling.rate))
    if sigma is not None:
        sigma = validate.non_negative("noise_multiplier", sigma)
        account = Account(sampling, sigma, adjacency, accountant, expansion)
        return Plan(sampling, per_epoch, count, delta, account, _affordable(account, target, delta))
    if target is None:
        raise SettingError("target_epsilon", None, "target_epsilon or noise_multiplier")
    sigma = noise_multiplier(
        target_epsilon=target,
        steps=count,
        delta=delta,
        sampler=sampling,
        accountant=accountant,
        adjacency=adjacency,
        expansion=expansion,
    )
    account = Account(sampling, sigma, adjacency, accountant, expansion)
    return Plan(sampling, per_epoch, count, delta, account, count)


def no_noise(name: str, target_epsilon: float | None, noise_multiplier: float | None) -> float:
    """Zero, unless somebody asks a method without privacy for some.

    >>> no_noise("sgd", None, None)
    0.0
    """
    for asked, value in (("target_epsilon", target_epsilon), ("noise_multiplier", noise_multiplier)):
        if value:
            other = f"; dp-{name} does" if f"dp-{name}" in METHODS else ""
            raise SettingError(asked, value, f"None: {name} adds no noise and promises nothing{other}")
    return 0.0


def _affordable(account: Account, target: float | None, delta: float) -> float:
    if target is None:
        return math.inf
    found = account.affordable(target, delta)
    if found == 0:
        raise SettingError(
            "target_epsilon",
            target,
            f"more, or a noise_multiplier above {account.noise_multiplier:g}: one step already costs more",
        )
    return found


def _sampling(sample_rate: float | None, sampler: Sampling | None) -> Sampling:
    if (sample_rate is None) == (sampler is None):
        raise SettingError("sample_rate", sample_rate, "either sample_rate or sampler")
    return sampler or Poisson(validate.sample_rate("sample_rate", sample_rate))


def _count(epochs: float | None, steps: int | None, sampling: Sampling) -> int:
    if epochs is not None and steps is None:
        return steps_of(epochs, sampling)
    if epochs is None and steps is not None:
        return validate.whole("steps", steps)
    raise SettingError("epochs", epochs, "either epochs or steps")


def _warn_of_large_delta(delta: float, records: float) -> None:
    if delta * records >= 1:
        warnings.warn(
            f"target_delta = {delta:g} is not below 1 / {records:.0f}, the expected number of records: "
            "such a delta allows publishing somebody's record outright",
            stacklevel=4,
        )
