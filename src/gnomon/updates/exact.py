"""Matrix products and convolutions of float32 numbers in full precision, without TF32 or bfloat16."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import backends

COARSE = ("tf32", "bf16")
"""Formats with at most ten mantissa bits that torch may use for float32 products; TF32 is a default on GPUs."""


@contextmanager
def exact_products() -> Iterator[None]:
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
    undo: list[Callable[[], None]] = []
    try:
        _refine_matmul(undo)
        _refine_cudnn(undo)
        operations = (getattr(backends.mkldnn, name, None) for name in ("conv", "rnn"))
        for backend in (backends, backends.cudnn, backends.mkldnn, *operations):
            _refine(backend, undo)
        yield
    finally:
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
