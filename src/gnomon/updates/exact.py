"""Products of float32 numbers with all their bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import backends

COARSE = ("tf32", "bf16")
"""Formats with ten bits and fewer that torch may use for products of float32 numbers, on GPUs by default."""


@contextmanager
def exact_products() -> Iterator[None]:
    """No product of float32 numbers is formed in a coarser format meanwhile, whatever the user's settings are.

    The room for rounding at the door is that of float32. With TF32 one record could pass for shorter than it is.

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
        _of_matrices(undo)
        _of_cudnn(undo)
        single = (getattr(backends.mkldnn, name, None) for name in ("conv", "rnn"))
        for place in (backends, backends.cudnn, backends.mkldnn, *single):
            _refined(place, undo)
        yield
    finally:
        while undo:
            undo.pop()()


def _of_matrices(undo: list[Callable[[], None]]) -> None:
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:  # the user has set backends one by one
        _refined(backends.cuda.matmul, undo)
        _refined(getattr(backends.mkldnn, "matmul", None), undo)
        return
    if before != "highest":
        torch.set_float32_matmul_precision("highest")
        undo.append(lambda: torch.set_float32_matmul_precision(before))


def _of_cudnn(undo: list[Callable[[], None]]) -> None:
    try:
        before = backends.cudnn.allow_tf32
    except RuntimeError:  # the user has set operations one by one
        _refined(getattr(backends.cudnn, "conv", None), undo)
        _refined(getattr(backends.cudnn, "rnn", None), undo)
        return
    if before:
        backends.cudnn.allow_tf32 = False
        undo.append(lambda: setattr(backends.cudnn, "allow_tf32", before))


def _refined(place: Any, undo: list[Callable[[], None]]) -> None:
    before = getattr(place, "fp32_precision", None)  # there since torch 2.9
    if before in COARSE:
        place.fp32_precision = "ieee"
        undo.append(lambda: setattr(place, "fp32_precision", before))
