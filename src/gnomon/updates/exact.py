"""Matrix products and convolutions of float32 numbers in full precision, without TF32 or bfloat16."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar, cast

import torch
from torch import backends

COARSE = ("tf32", "bf16")
"""Formats with at most ten mantissa bits that torch may use for float32 products; TF32 is a default on GPUs."""

Function = TypeVar("Function", bound=Callable[..., Any])

_BACKENDS = (
    ("generic", "all", backends),
    ("cuda", "all", backends.cudnn),
    ("mkldnn", "all", backends.mkldnn),
    ("mkldnn", "conv", getattr(backends.mkldnn, "conv", None)),
    ("mkldnn", "rnn", getattr(backends.mkldnn, "rnn", None)),
)
_precision: Callable[[str, str], str] | None = getattr(torch._C, "_get_fp32_precision_getter", None)
"""What the property `fp32_precision` of these backends calls, since torch 2.9; the property takes six times as long."""


class exact_products:  # a context manager, and a decorator without the cost of a generator
    """Compute float32 products in full float32 precision, whatever the user's settings; restore the settings on exit.

    The release allows for the rounding errors of float32. With TF32 the computed norm of an update could be below its
    true norm by more than that, and the clip bound would not hold.

    >>> torch.set_float32_matmul_precision("high")
    >>> with exact_products():
    ...     torch.get_float32_matmul_precision()
    'highest'
    >>> torch.get_float32_matmul_precision()
    'high'
    >>> torch.set_float32_matmul_precision("highest")
    """

    def __enter__(self) -> None:
        self._undo = _refined()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _restore(self._undo)

    def __call__(self, function: Function) -> Function:
        @functools.wraps(function)
        def exact(*args: Any, **kwargs: Any) -> Any:
            undo = _refined()
            try:
                return function(*args, **kwargs)
            finally:
                _restore(undo)

        return cast(Function, exact)


def _refined() -> list[Callable[[], None]]:
    """Choose full precision, and return what restores the settings."""
    undo: list[Callable[[], None]] = []
    try:
        _refine_matmul(undo)
        _refine_cudnn(undo)
        for name, operation, backend in _BACKENDS:
            if _precision is None or _precision(name, operation) in COARSE:
                _refine(backend, undo)
    except BaseException:
        _restore(undo)
        raise
    return undo


def _restore(undo: list[Callable[[], None]]) -> None:
    while undo:
        undo.pop()()


def _refine_matmul(undo: list[Callable[[], None]]) -> None:
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:  # the user has chosen a precision for each backend
        _refine(backends.cuda.matmul, undo)
        _refine(getattr(backends.mkldnn, "matmul", None), undo)
        return
    if before != "highest":
        torch.set_float32_matmul_precision("highest")
        undo.append(lambda: torch.set_float32_matmul_precision(before))


def _refine_cudnn(undo: list[Callable[[], None]]) -> None:
    try:
        before = backends.cudnn.allow_tf32
    except RuntimeError:  # the user has chosen a precision for each operation
        _refine(getattr(backends.cudnn, "conv", None), undo)
        _refine(getattr(backends.cudnn, "rnn", None), undo)
        return
    if before:
        backends.cudnn.allow_tf32 = False
        undo.append(lambda: setattr(backends.cudnn, "allow_tf32", before))


def _refine(backend: Any, undo: list[Callable[[], None]]) -> None:
    before = getattr(backend, "fp32_precision", None)  # exists since torch 2.9
    if before in COARSE:
        backend.fp32_precision = "ieee"
        undo.append(lambda: setattr(backend, "fp32_precision", before))
