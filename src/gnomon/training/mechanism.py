"""The privacy claim of a run as data: everything that its epsilon, and the meaning of that epsilon, depend on."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gnomon import validate
from gnomon.accounting import Account, Epsilon, noise_multiplier
from gnomon.accounting.epsilon import Accountant, parse_accountant, resolve_sampler
from gnomon.errors import SettingError
from gnomon.ledger.state import RECORD
from gnomon.methods import METHODS, Method, dp_sgd
from gnomon.sampling import Sampling, steps_of, steps_per_epoch


@dataclass(frozen=True)
class Mechanism:
    """A method with its clip bound, sampling, noise and length: the mechanism that an epsilon is about.

    Every number is declared and public; none is derived from the data. A mechanism holds neither a model nor data nor
    counters, so it can be stored, compared and varied with `dataclasses.replace`.

    Attributes:
        method: the composition of stages.
        sampler: the sampling scheme, which says who takes part in a step.
        noise_multiplier: standard deviation of the noise, divided by `max_grad_norm`.
        max_grad_norm: the clip bound C; infinite for a method that is not private.
        expected_batch_size: the declared divisor of each noisy sum.
        steps: the planned number of steps.
        delta: the delta at which epsilon is stated.
        accountant: the accounting method: "pld", "rdp", "rdp-classic" or "gdp".
        adjacency: which data sets are neighbours (default: the sampling scheme's).
        unit: what neighbouring data sets differ in.
        target_epsilon: the epsilon at which a run ends, or None.
        max_steps: the number of steps that `target_epsilon` pays for, at most `steps`; None without a target. Derived.

    >>> from gnomon.sampling import Poisson
    >>> mechanism = Mechanism(sampler=Poisson(0.025), noise_multiplier=10.0, expected_batch_size=250, steps=3200,
    ...                       delta=1e-5)
    >>> mechanism.epsilon()
    epsilon = 0.500 at delta = 1e-05 (add-remove, Poisson q = 0.025, PLD)
    >>> mechanism.epsilon(steps=40) < 0.1, replace(mechanism, noise_multiplier=5.0).epsilon() > 1
    (True, True)
    """

    sampler: Sampling
    noise_multiplier: float
    expected_batch_size: float
    steps: int
    delta: float
    max_grad_norm: float = 1.0
    method: Method = field(default_factory=dp_sgd)
    accountant: Accountant = "pld"
    adjacency: str | None = None
    unit: str = RECORD
    target_epsilon: float | None = None
    max_steps: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            "noise_multiplier": validate.non_negative("noise_multiplier", self.noise_multiplier),
            "expected_batch_size": validate.positive("expected_batch_size", self.expected_batch_size),
            "steps": validate.whole("steps", self.steps),
            "delta": validate.probability("delta", self.delta),
            "accountant": parse_accountant(self.accountant),
            "max_grad_norm": math.inf,
        }
        if self.method.private:
            checked["max_grad_norm"] = validate.positive("max_grad_norm", self.max_grad_norm)
        elif self.noise_multiplier:
            raise _no_noise("noise_multiplier", self.noise_multiplier, self.method.name)
        if not isinstance(self.unit, str) or not self.unit:
            raise SettingError("unit", self.unit, "a description of what neighbouring data sets differ in")
        self.method.check(self.sampler)
        checked["adjacency"] = self.account().adjacency
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.target_epsilon is not None:
            target = validate.positive("target_epsilon", self.target_epsilon)
            if not self.method.private:
                raise _no_noise("target_epsilon", target, self.method.name)
            object.__setattr__(self, "target_epsilon", target)
            object.__setattr__(self, "max_steps", self._affordable_steps(target))

    @classmethod
    def calibrated(
        cls, *, target_epsilon: float, sampler: Sampling, steps: int, delta: float, **settings: Any
    ) -> Mechanism:
        """Return the mechanism with the least noise that keeps epsilon at most `target_epsilon` after `steps` steps.

        Args:
            target_epsilon: the epsilon that the whole run may cost.
            sampler: the sampling scheme.
            steps: the number of steps; no more than these may be taken.
            delta: the delta at which epsilon is stated.
            **settings: the other attributes of a mechanism, except `noise_multiplier`.

        >>> from gnomon.sampling import Poisson
        >>> mechanism = Mechanism.calibrated(
        ...     target_epsilon=0.5, sampler=Poisson(0.025), steps=3200, delta=1e-5, expected_batch_size=250)
        >>> round(mechanism.noise_multiplier, 1), mechanism.last_step
        (10.0, 3200)
        """
        method = settings.get("method") or dp_sgd()
        if not method.private:
            raise _no_noise("target_epsilon", target_epsilon, method.name)
        noise = noise_multiplier(
            target_epsilon=target_epsilon,
            steps=steps,
            delta=delta,
            sampler=sampler,
            accountant=settings.get("accountant", "pld"),
            adjacency=settings.get("adjacency"),
            expansion=method.expansion,
        )
        return cls(
            sampler=sampler,
            noise_multiplier=noise,
            steps=steps,
            delta=delta,
            target_epsilon=target_epsilon,
            **settings,
        )

    @classmethod
    def from_settings(
        cls,
        *,
        expected_batch_size: float | None,
        target_delta: float | None,
        sample_rate: float | None = None,
        sampler: Sampling | None = None,
        target_epsilon: float | None = None,
        noise_multiplier: float | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        method: Method | None = None,
        max_grad_norm: float | None = None,
        accountant: Accountant | None = None,
        **settings: Any,
    ) -> Mechanism:
        """Return the mechanism that the settings of a Trainer stand for.

        Args:
            expected_batch_size: the declared divisor.
            target_delta: the delta at which epsilon is stated.
            sample_rate: the rate of Poisson sampling; or give a `sampler`.
            sampler: the sampling scheme.
            target_epsilon: calibrates the noise, or, beside a `noise_multiplier`, ends the run at this epsilon.
            noise_multiplier: the noise; without it, it is calibrated for `target_epsilon`.
            epochs: the length in epochs; or give `steps`.
            steps: the length in steps.
            method: the composition of stages (default: DP-SGD).
            max_grad_norm: the clip bound (default: 1).
            accountant: the accounting method (default: "pld").
            **settings: the other attributes of a mechanism.

        Raises:
            SettingError: a value is out of its range, a needed setting is missing, or two settings exclude each other.

        >>> mechanism = Mechanism.from_settings(
        ...     sample_rate=0.025, expected_batch_size=250, noise_multiplier=10.0, target_epsilon=0.3,
        ...     target_delta=1e-5, epochs=80)
        >>> mechanism.steps, mechanism.last_step < 3200
        (3200, True)
        """
        method = method or dp_sgd()
        divisor = validate.positive("expected_batch_size", expected_batch_size)
        delta = validate.probability("target_delta", target_delta)
        target = None if target_epsilon is None else validate.positive("target_epsilon", target_epsilon)
        scheme = resolve_sampler(sample_rate, sampler)
        common: dict[str, Any] = settings | {
            "sampler": scheme,
            "steps": _chosen_steps(epochs, steps, scheme),
            "delta": delta,
            "expected_batch_size": divisor,
            "method": method,
            "max_grad_norm": 1.0 if max_grad_norm is None else max_grad_norm,
            "accountant": "pld" if accountant is None else accountant,
        }
        _warn_of_large_delta(delta, divisor * max(steps_per_epoch(scheme), 1 / scheme.rate))
        if not method.private:
            if target is not None:
                raise _no_noise("target_epsilon", target, method.name)
            return cls(noise_multiplier=noise_multiplier or 0.0, **common)
        if noise_multiplier is None:
            if target is None:
                raise SettingError.with_message("set target_epsilon or noise_multiplier", name="target_epsilon")
            return cls.calibrated(target_epsilon=target, **common)
        return cls(noise_multiplier=noise_multiplier, target_epsilon=target, **common)

    def _affordable_steps(self, target_epsilon: float) -> int:
        """Return the largest number of planned steps that a target epsilon pays for."""
        account = self.account()
        if account.epsilon(self.delta, self.steps) <= target_epsilon:
            return self.steps
        affordable = account.affordable(target_epsilon, self.delta)
        if affordable == 0:
            raise SettingError(
                "target_epsilon",
                target_epsilon,
                f"a larger one, or a noise_multiplier above {self.noise_multiplier:g}: one step already costs more",
            )
        return affordable

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps that read about every record once."""
        return steps_per_epoch(self.sampler)

    @property
    def last_step(self) -> int:
        """The number of steps after which a run ends: all planned ones, or those that the target epsilon pays for."""
        return self.steps if self.max_steps is None else self.max_steps

    def account(self) -> Account:
        """Return an account of this mechanism with no steps charged."""
        return Account(self.sampler, self.noise_multiplier, self.adjacency, self.accountant, self.method.expansion)

    def epsilon(self, steps: int | None = None) -> Epsilon:
        """Return epsilon after `steps` steps (default: all that the run will take)."""
        return self.account().epsilon(self.delta, self.last_step if steps is None else steps)

    def with_method(self, method: Method) -> Mechanism:
        """Return the mechanism with another method whose steps cost the same.

        Raises:
            SettingError: the other method's steps cost something else, so steps already taken would change their price.
        """
        if method.expansion != self.method.expansion or method.private != self.method.private:
            allowed = "a method whose steps cost the same as those that were planned, or another Trainer"
            raise SettingError("method", method.name, allowed)
        return replace(self, method=method)

    def to_dict(self) -> dict[str, Any]:
        """Return the claim as plain values for JSON. The method is named by its description.

        >>> from gnomon.sampling import Poisson
        >>> mechanism = Mechanism(Poisson(0.1), 1.0, 64, 100, 1e-5)
        >>> Mechanism.from_dict(mechanism.to_dict()) == mechanism
        True
        """
        account = self.account().to_dict()
        del account["steps"]
        return account | {
            "steps": self.steps,
            "target_epsilon": self.target_epsilon,
            "delta": self.delta,
            "max_grad_norm": self.max_grad_norm if math.isfinite(self.max_grad_norm) else None,
            "expected_batch_size": self.expected_batch_size,
            "method": self.method.describe(),
            "unit": self.unit,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], method: Method | None = None) -> Mechanism:
        """Return the mechanism that `to_dict` described.

        Args:
            values: what `to_dict` returned. Every value is checked again.
            method: the method, which is code and not stored (default: DP-SGD).

        Raises:
            SettingError: a value is missing or wrong, or the method is not the one that was described.
        """
        method = method or dp_sgd()
        try:
            account = Account.from_dict({**values, "steps": 0})
            if values["method"] != method.describe():
                raise SettingError("method", method.describe(), f"the method that was described, {values['method']!r}")
            return cls(
                account.sampler,
                account.noise_multiplier,
                values["expected_batch_size"],
                values["steps"],
                values["delta"],
                math.inf if values["max_grad_norm"] is None else values["max_grad_norm"],
                method,
                account.accountant,
                account.adjacency,
                values["unit"],
                values["target_epsilon"],
            )
        except (KeyError, TypeError) as error:
            raise SettingError("values", values, f"what Mechanism.to_dict returned ({error!r})") from error


def _no_noise(name: str, value: object, method: str) -> SettingError:
    """The error of a setting that asks a method without privacy for noise."""
    private = f"; dp-{method} does" if f"dp-{method}" in METHODS else ""
    return SettingError(name, value, f"None: {method} adds no noise and promises nothing{private}")


def _chosen_steps(epochs: float | None, steps: int | None, sampler: Sampling) -> int:
    if epochs is not None and steps is None:
        return steps_of(epochs, sampler)
    if epochs is None and steps is not None:
        return validate.whole("steps", steps)
    raise SettingError("epochs", epochs, "either epochs or steps, one of the two")


def _warn_of_large_delta(delta: float, records: float) -> None:
    if delta * records >= 1:
        warnings.warn(
            f"target_delta = {delta:g} is not below 1 / {records:.0f}, the expected number of records: "
            "such a delta allows publishing somebody's record outright",
            stacklevel=4,
        )
