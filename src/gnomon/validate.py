"""Validation of settings where they enter the library: each error names the setting, its value and what is allowed."""

from __future__ import annotations

import math
from numbers import Real

from gnomon.errors import SettingError


def number(name: str, value: object, expected: str = "a finite number") -> float:
    """Return the value as a float if it is a finite real number; otherwise raise SettingError with `expected`.

    >>> number("lr", 1)
    1.0
    >>> number("lr", float("nan"))
    Traceback (most recent call last):
    gnomon.errors.SettingError: lr = nan is invalid; expected a finite number
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise SettingError(name, value, expected)
    return float(value)


def positive(name: str, value: object) -> float:
    """Return the value as a float if it is finite and above 0; otherwise raise SettingError.

    >>> positive("max_grad_norm", 0.01)
    0.01
    """
    expected = "a finite number above 0"
    result = number(name, value, expected)
    if result <= 0:
        raise SettingError(name, value, expected)
    return result


def non_negative(name: str, value: object) -> float:
    """Return the value as a float if it is finite and at least 0; otherwise raise SettingError.

    >>> non_negative("noise_multiplier", 0)
    0.0
    """
    expected = "a finite number, 0 or above"
    result = number(name, value, expected)
    if result < 0:
        raise SettingError(name, value, expected)
    return result


def sample_rate(name: str, value: object) -> float:
    """Return the value as a float if it is above 0 and at most 1; otherwise raise SettingError.

    >>> sample_rate("sample_rate", 0.025)
    0.025
    """
    expected = "a probability above 0 and at most 1"
    result = number(name, value, expected)
    if not 0 < result <= 1:
        raise SettingError(name, value, expected)
    return result


def probability(name: str, value: object) -> float:
    """Return the value as a float if it is strictly between 0 and 1; otherwise raise SettingError.

    >>> probability("delta", 1e-5)
    1e-05
    """
    expected = "a number strictly between 0 and 1"
    result = number(name, value, expected)
    if not 0 < result < 1:
        raise SettingError(name, value, expected)
    return result


def whole(name: str, value: object, least: int = 1) -> int:
    """Return the value as an int if it is a whole number of at least `least`; otherwise raise SettingError.

    >>> whole("steps", 3200)
    3200
    """
    expected = f"a whole number, {least} or above"
    result = number(name, value, expected)
    if result != int(result) or result < least:
        raise SettingError(name, value, expected)
    return int(result)
