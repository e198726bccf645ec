"""The account of one run: what has been spent, and how far the budget goes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gnomon import validate
from gnomon.accounting import bounds, search
from gnomon.accounting.composition import GaussianComposition
from gnomon.accounting.epsilon import Accountant, chosen_accountant, chosen_sampler, epsilon
from gnomon.accounting.result import Epsilon
from gnomon.accounting.sketch import Expansion
from gnomon.errors import SettingError
from gnomon.sampling.adjacency import Adjacency
from gnomon.sampling.fixed_size import FixedSize
from gnomon.sampling.full_batch import FullBatch
from gnomon.sampling.poisson import Poisson
from gnomon.sampling.scheme import Sampling
from gnomon.sampling.shuffled import Shuffled
from gnomon.sampling.truncated_poisson import TruncatedPoisson

MOST_STEPS = 10**9
KINDS: dict[str, type[Sampling]] = {
    scheme.kind: scheme for scheme in (Poisson, TruncatedPoisson, FullBatch, Shuffled, FixedSize)
}
"""The sampling schemes by their names in files. A new scheme is one class and one entry here."""


class Account:
    """Counts the steps of a run and says what they cost. Charge before the noise is drawn, never after.

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
        self._sampler = chosen_sampler(None, sampler)
        self._noise_multiplier = validate.non_negative("noise_multiplier", noise_multiplier)
        self._adjacency = self._sampler.adjacency(adjacency)
        self._accountant = chosen_accountant(accountant)
        self._expansion = expansion
        bounds.supported(self._accountant, self._sampler, self._adjacency)
        self._steps = 0
        self._known: dict[tuple[int, float], Epsilon] = {}

    # settings cannot be changed: that would put another price on steps that were taken

    @property
    def sampler(self) -> Sampling:
        """How records are drawn."""
        return self._sampler

    @property
    def noise_multiplier(self) -> float:
        """Noise over bound."""
        return self._noise_multiplier

    @property
    def adjacency(self) -> Adjacency:
        """Which data sets count as neighbours."""
        return self._adjacency

    @property
    def accountant(self) -> Accountant:
        """Who adds up."""
        return self._accountant

    @property
    def expansion(self) -> Expansion | None:
        """How far what is released can stretch a change."""
        return self._expansion

    @property
    def steps(self) -> int:
        """The steps charged so far."""
        return self._steps

    def charge(self, steps: int = 1) -> None:
        """Record that `steps` noisy sums are about to be released."""
        self._steps += validate.whole("steps", steps)

    def epsilon(self, delta: float, steps: int | None = None) -> Epsilon:
        """What the charged steps cost, or so many. The same question is answered from memory."""
        count = self._steps if steps is None else validate.whole("steps", steps, least=0)
        return self._at(count, validate.probability("delta", delta))

    def estimate(self, delta: float) -> float:
        """An upper bound on `epsilon`, within a few percent, in a fraction of the time: for progress bars.

        >>> account = Account(Poisson(0.025), noise_multiplier=10.0)
        >>> account.charge(3200)
        >>> 0.5 < account.estimate(1e-5) < 0.51
        True
        """
        return self._bound(self._steps, validate.probability("delta", delta), coarser=5.0)

    def affordable(self, target_epsilon: float, delta: float) -> int:
        """The largest total number of steps, charged ones included, that keeps epsilon at most the target.

        The answer is at most 10**9.

        >>> Account(Poisson(0.05), noise_multiplier=2.0, accountant="rdp").affordable(2.0, 1e-5)
        268
        """
        target = validate.positive("target_epsilon", target_epsilon)
        delta = validate.probability("delta", delta)

        def rough(steps: int) -> bool:
            return self._bound(steps, delta, coarser=10.0) <= target

        def fits(steps: int) -> bool:
            return self._at(steps, delta) <= target

        start = search.last(rough, 1, 1, MOST_STEPS) if self.accountant == "pld" else 1
        return search.last(fits, start, max(1, start // 500), MOST_STEPS)

    def events(self) -> list[dict[str, Any]]:
        """What was released, as plain values: one entry, or none before the first charge."""
        if not self._steps:
            return []
        entry = {"sampler": self.sampler.name, "q": self.sampler.rate if self.sampler.amplified else None}
        if self.expansion is not None:
            entry["expansion"] = self.expansion.name
        return [entry | {"noise_multiplier": self.noise_multiplier, "steps": self._steps, "adjacency": self.adjacency}]

    def to_dict(self) -> dict[str, Any]:
        """The account as plain values, for JSON.

        >>> Account.from_dict(Account(Shuffled(40), 2.0).to_dict()).sampler
        Shuffled(steps_per_epoch=40)
        """
        kind = next((name for name, one in KINDS.items() if type(self.sampler) is one), None)
        if kind is None:
            raise SettingError("sampler", type(self.sampler).__name__, f"one of {', '.join(KINDS)}")
        return {
            "sampler": {"kind": kind} | asdict(self.sampler),  # type: ignore[call-overload]
            "noise_multiplier": self.noise_multiplier,
            "adjacency": self.adjacency,
            "accountant": self.accountant,
            "steps": self._steps,
            "expansion": None if self.expansion is None else self.expansion.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Account:
        """The account that `to_dict` described. Every value is checked again."""
        try:
            fields = dict(values["sampler"])
            sampler = KINDS[fields.pop("kind")](**fields)
            sketch = values.get("expansion")
            expansion = None if sketch is None else Expansion.from_dict(sketch)
            account = cls(sampler, values["noise_multiplier"], values["adjacency"], values["accountant"], expansion)
            account._steps = validate.whole("steps", values["steps"], least=0)
        except (KeyError, TypeError) as error:
            raise SettingError("values", values, f"what to_dict returned ({error!r})") from error
        return account

    def _bound(self, steps: int, delta: float, coarser: float = 1.0) -> float:
        run = GaussianComposition(self.sampler, self.noise_multiplier, steps, delta, self.adjacency, self.expansion)
        return bounds.bound(self.accountant, run, coarser).value

    def _at(self, steps: int, delta: float) -> Epsilon:
        if (steps, delta) not in self._known:
            self._known[steps, delta] = epsilon(
                noise_multiplier=self.noise_multiplier,
                steps=steps,
                delta=delta,
                sampler=self.sampler,
                accountant=self.accountant,
                adjacency=self.adjacency,
                expansion=self.expansion,
            )
        return self._known[steps, delta]
