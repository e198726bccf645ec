"""The privacy account of one run: what its steps have cost, and how many more fit a budget."""

from __future__ import annotations

from typing import Any

from gnomon import validate
from gnomon.accounting import bounds
from gnomon.accounting.calibrate import largest_integer
from gnomon.accounting.epsilon import Accountant, epsilon, parse_accountant, resolve_sampler
from gnomon.accounting.gaussian import GaussianComposition
from gnomon.accounting.result import Epsilon
from gnomon.accounting.sketch import Expansion
from gnomon.errors import SettingError
from gnomon.sampling.adjacency import Adjacency
from gnomon.sampling.registry import scheme_from_dict, scheme_to_dict
from gnomon.sampling.scheme import Sampling

MOST_STEPS = 10**9


class Account:
    """Counts the steps of a run and computes their epsilon.

    Charge a step before its noise is drawn, never after: a crash in between then over-counts, and never under-counts.

    Args:
        sampler: The sampling scheme.
        noise_multiplier: The standard deviation of the noise, in units of the clip bound.
        adjacency: The adjacency relation; the sampler's default if None.
        accountant: The accounting method; see `gnomon.accounting.epsilon`.
        expansion: For methods that sketch the sum before noise is added.

    Raises:
        SettingError: A setting is invalid, or the accountant has no bound for this sampler and adjacency.

    >>> from gnomon.sampling.poisson import Poisson
    >>> account = Account(Poisson(0.025), noise_multiplier=10.0)
    >>> account.charge(3200)
    >>> account.epsilon(1e-5)
    epsilon = 0.500 at delta = 1e-05 (add-remove, Poisson q = 0.025, PLD)
    """

    def __init__(
        self,
        sampler: Sampling,
        noise_multiplier: float,
        adjacency: str | None = None,
        accountant: Accountant = "pld",
        expansion: Expansion | None = None,
    ) -> None:
        self._sampler = resolve_sampler(None, sampler)
        self._noise_multiplier = validate.non_negative("noise_multiplier", noise_multiplier)
        self._adjacency = self._sampler.resolve_adjacency(adjacency)
        self._accountant = parse_accountant(accountant)
        self._expansion = expansion
        bounds.check_supported(self._accountant, self._sampler, self._adjacency)
        self._steps = 0
        self._cache: dict[tuple[int, float], Epsilon] = {}

    # the settings are read-only: a change would alter the price of steps that were already taken

    @property
    def sampler(self) -> Sampling:
        """The sampling scheme."""
        return self._sampler

    @property
    def noise_multiplier(self) -> float:
        """The standard deviation of the noise, in units of the clip bound."""
        return self._noise_multiplier

    @property
    def adjacency(self) -> Adjacency:
        """The adjacency relation: which data sets count as neighbours."""
        return self._adjacency

    @property
    def accountant(self) -> Accountant:
        """The accounting method: "pld", "rdp", "rdp-classic" or "gdp"."""
        return self._accountant

    @property
    def expansion(self) -> Expansion | None:
        """The bound on how far a sketch of the sum stretches the change of one record; None without a sketch."""
        return self._expansion

    @property
    def steps(self) -> int:
        """The number of steps charged so far."""
        return self._steps

    def charge(self, steps: int = 1) -> None:
        """Record that `steps` noisy sums are about to be released."""
        self._steps += validate.whole("steps", steps)

    def epsilon(self, delta: float, steps: int | None = None) -> Epsilon:
        """Return epsilon after `steps` steps (default: all charged steps). Results are cached."""
        count = self._steps if steps is None else validate.whole("steps", steps, least=0)
        return self._cached_epsilon(count, validate.probability("delta", delta))

    def estimate(self, delta: float) -> float:
        """Return an upper bound on `epsilon` that is within a few percent and much faster, for progress bars.

        >>> from gnomon.sampling.poisson import Poisson
        >>> account = Account(Poisson(0.025), noise_multiplier=10.0)
        >>> account.charge(3200)
        >>> 0.5 < account.estimate(1e-5) < 0.51
        True
        """
        return self._bound(self._steps, validate.probability("delta", delta), coarser=5.0)

    def affordable(self, target_epsilon: float, delta: float) -> int:
        """Return the largest total number of steps, including charged steps, whose epsilon is at most the target.

        The result is at most 10**9.

        >>> from gnomon.sampling.poisson import Poisson
        >>> Account(Poisson(0.05), noise_multiplier=2.0, accountant="rdp").affordable(2.0, 1e-5)
        268
        """
        target = validate.positive("target_epsilon", target_epsilon)
        delta = validate.probability("delta", delta)

        def fits_roughly(steps: int) -> bool:
            return self._bound(steps, delta, coarser=10.0) <= target

        def fits(steps: int) -> bool:
            return self._cached_epsilon(steps, delta) <= target

        start = largest_integer(fits_roughly, 1, 1, MOST_STEPS) if self.accountant == "pld" else 1
        return largest_integer(fits, start, max(1, start // 500), MOST_STEPS)

    def events(self) -> list[dict[str, Any]]:
        """Return what was released as plain values: one entry, or none before the first charge."""
        if not self._steps:
            return []
        entry = {"sampler": self.sampler.name, "q": self.sampler.rate if self.sampler.amplified else None}
        if self.expansion is not None:
            entry["expansion"] = self.expansion.name
        return [entry | {"noise_multiplier": self.noise_multiplier, "steps": self._steps, "adjacency": self.adjacency}]

    def to_dict(self) -> dict[str, Any]:
        """Return the account as plain values for JSON; `from_dict` reads them.

        Raises:
            SettingError: The sampler is not one of the registered schemes (`gnomon.sampling.SCHEMES`).

        >>> from gnomon.sampling.shuffled import Shuffled
        >>> Account.from_dict(Account(Shuffled(40), 2.0).to_dict()).sampler
        Shuffled(steps_per_epoch=40)
        """
        return {
            "sampler": scheme_to_dict(self.sampler),
            "noise_multiplier": self.noise_multiplier,
            "adjacency": self.adjacency,
            "accountant": self.accountant,
            "steps": self._steps,
            "expansion": None if self.expansion is None else self.expansion.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Account:
        """Return the account that `to_dict` described; every value is validated again.

        Raises:
            SettingError: A value is missing or invalid.
        """
        try:
            sampler = scheme_from_dict(values["sampler"])
            sketch = values.get("expansion")
            expansion = None if sketch is None else Expansion.from_dict(sketch)
            account = cls(sampler, values["noise_multiplier"], values["adjacency"], values["accountant"], expansion)
            account._steps = validate.whole("steps", values["steps"], least=0)
        except (KeyError, TypeError, AttributeError) as error:
            raise SettingError("values", values, f"the result of Account.to_dict ({error!r})") from error
        return account

    def _bound(self, steps: int, delta: float, coarser: float = 1.0) -> float:
        run = GaussianComposition(self.sampler, self.noise_multiplier, steps, delta, self.adjacency, self.expansion)
        return bounds.bound(self.accountant, run, coarser).value

    def _cached_epsilon(self, steps: int, delta: float) -> Epsilon:
        if (steps, delta) not in self._cache:
            self._cache[steps, delta] = epsilon(
                noise_multiplier=self.noise_multiplier,
                steps=steps,
                delta=delta,
                sampler=self.sampler,
                accountant=self.accountant,
                adjacency=self.adjacency,
                expansion=self.expansion,
            )
        return self._cache[steps, delta]
