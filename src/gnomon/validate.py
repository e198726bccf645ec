"""Checks of settings at the border. Each error names the parameter, its value and what is allowed."""

from __future__ import annotations

import math
from numbers import Real

from gnomon.errors import SettingError


def number(name: str, value: object, allowed: str = "a finite number") -> float:
    """The value as a float, if it is a finite real number.

    >>> number("lr", 1)
    1.0
    >>> number("lr", float("nan"))
    Traceback (most recent call last):
    gnomon.errors.SettingError: lr = nan is invalid; expected a finite number
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise SettingError(name, value, allowed)
    return float(value)


def positive(name: str, value: object) -> float:
    """The value as a float, if it is finite and above zero.

    >>> positive("max_grad_norm", 0.01)
    0.01
    """
    allowed = "a finite number above 0"
    if number(name, value, allowed) <= 0:
        raise SettingError(name, value, allowed)
    return number(name, value)


def non_negative(name: str, value: object) -> float:
    """The value as a float, if it is finite and not below zero.

    >>> non_negative("noise_multiplier", 0)
    0.0
    """
    allowed = "a finite number, 0 or above"
    if number(name, value, allowed) < 0:
        raise SettingError(name, value, allowed)
    return number(name, value)


def sample_rate(name: str, value: object) -> float:
    """The value as a float, if it lies in (0, 1].

    >>> sample_rate("sample_rate", 0.025)
    0.025
    """
    allowed = "a probability above 0 and at most 1"
    if not 0 < number(name, value, allowed) <= 1:
        raise SettingError(name, value, allowed)
    return number(name, value)


def probability(name: str, value: object) -> float:
    """The value as a float, if it lies strictly between 0 and 1.

    >>> probability("delta", 1e-5)
    1e-05
    """
    allowed = "a number strictly between 0 and 1"
    if not 0 < number(name, value, allowed) < 1:
        raise SettingError(name, value, allowed)
    return number(name, value)


def whole(name: str, value: object, least: int = 1) -> int:
    """The value as an int, if it is a whole number and at least `least`.

    >>> whole("steps", 3200)
    3200
    """
    allowed = f"a whole number, {least} or above"
    if number(name, value, allowed) != int(number(name, value, allowed)) or number(name, value) < least:
        raise SettingError(name, value, allowed)
    return int(number(name, value))
