"""The classes of errors. A message says what is wrong, with the value, what is allowed, and what to do next."""

from __future__ import annotations

from pathlib import Path
from typing import Self


class GnomonError(Exception):
    """Base class of all errors that Gnomon raises on purpose."""


class SettingError(GnomonError, ValueError):
    """A setting has a value that cannot be used.

    Args:
        name: The name of the parameter or flag.
        value: The invalid value.
        expected: The allowed values, as a noun phrase.

    >>> str(SettingError("max_grad_norm", -1.0, "a finite number above 0"))
    'max_grad_norm = -1.0 is invalid; expected a finite number above 0'
    """

    def __init__(self, name: str, value: object, expected: str) -> None:
        self.name, self.value, self.expected = name, value, expected
        super().__init__(f"{name} = {value!r} is invalid; expected {expected}")

    @classmethod
    def with_message(cls, message: str, *, name: str = "", value: object = None) -> Self:
        """Return an error with a custom message, for example for settings that exclude each other.

        Args:
            message: The whole message.
            name: The name of the setting, if the error is about one setting.
            value: The invalid value, if the error is about one setting.

        >>> str(SettingError.with_message("set either epochs or steps, not both"))
        'set either epochs or steps, not both'
        """
        error = cls.__new__(cls, message)
        error.name, error.value, error.expected = name, value, ""
        error.args = (message,)
        return error


class StateError(GnomonError, RuntimeError):
    """A call is not possible in the current state of an object, a run or a round.

    >>> str(StateError("the step was already released; call accumulate first"))
    'the step was already released; call accumulate first'
    """


class DataError(GnomonError, ValueError):
    """A file or a record is missing, damaged or in the wrong format.

    Args:
        subject: The file or the records.
        problem: What is wrong with the subject, as a verb phrase.
        remedy: What to do about it.

    >>> str(DataError("labels.gz", "has 3 labels for 4 images", "download the file again"))
    'labels.gz has 3 labels for 4 images: download the file again'
    """

    def __init__(self, subject: str | Path, problem: str, remedy: str) -> None:
        self.subject, self.problem, self.remedy = str(subject), problem, remedy
        super().__init__(f"{subject} {problem}: {remedy}")
