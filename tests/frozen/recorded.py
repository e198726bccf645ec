"""Serialisation and comparison of the outputs in `frozen.json`.

A tensor is stored as its shape, its norm, two of its values and the SHA-256 of its bytes. The hash decides whether two
tensors are equal; the values distinguish a rounding difference from a real one. Numbers are stored in full, separately
from words: words may change (`freeze --words`), numbers may not.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FILE = Path(__file__).with_name("frozen.json")
HASH_CHARACTERS = 20
LONGEST_TEXT = 80
LONGEST_LIST, LONGEST_WHOLE = 3, 20
SHOWN_TENSORS = 3
RELATIVE, ABSOLUTE = 1e-4, 1e-7
"""Relative tolerance for numbers on a machine other than the one that froze them. Some are small differences of large
numbers, such as a norm minus the clip bound, and magnify rounding errors."""


def machine() -> dict[str, Any]:
    """Return everything that decides the last bits of a result: equal machines give equal bits."""
    return {
        "torch": torch.__version__,
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
        "cpu": _processor(),
        "threads": 1,
        "packages": {name: version(name) for name in ("numpy", "scipy", "scikit-learn", "dp-accounting")},
    }


def _processor() -> str:
    """Return the model of the processor, by which BLAS libraries choose kernels and block sizes."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    about = dict(line.split(":", 1) for line in lines if ":" in line)
    return next((value.strip() for key, value in about.items() if key.strip() == "model name"), platform.processor())


# -- writing -------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Return an output as values that JSON can represent."""
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, Tensor):
        value = {"": value}
    if isinstance(value, Mapping):
        tensors = bool(value) and all(isinstance(one, Tensor) for one in value.values())
        return _tensors(value) if tensors else {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return _list(list(value))
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        return _long_text(value)
    if isinstance(value, str | bool | None):
        return value
    return int(value) if isinstance(value, int | np.integer) else float(value)


def _tensors(named: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return one hash of named tensors, their joint norm, and the first and last values of some of them."""
    digest, norms = hashlib.sha256(), []
    for name, tensor in named.items():
        value = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {list(value.shape)}".encode())
        digest.update(value.numpy().tobytes())
        norms.append(value.double().norm().item())
    every = list(named)
    shown = every if len(every) <= SHOWN_TENSORS else [every[0], every[len(every) // 2], every[-1]]
    return {
        "sha256": digest.hexdigest()[:HASH_CHARACTERS],
        "norm": float(f"{math.hypot(*norms):.9g}"),
        "values": {name: _ends(named[name]) for name in shown},
    }


def _ends(tensor: Tensor) -> list[Any]:
    """Return type and shape, and the first and last value in the shortest lossless form."""
    flat = tensor.detach().cpu().flatten().numpy()
    kind = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
    ends = [flat[0], flat[-1]] if flat.size > 1 else list(flat)
    return [kind, *(float(str(one)) if flat.dtype.kind == "f" else int(one) for one in ends)]


def _list(values: list[Any]) -> Any:
    if all(isinstance(one, str) for one in values) and sum(map(len, values)) > LONGEST_TEXT:
        return _long_text("\n".join(values))
    whole = all(type(one) is int for one in values)
    if len(values) > (LONGEST_WHOLE if whole else LONGEST_LIST) and (table := _table(values)) is not None:
        return _tensors({"": table})
    if len(values) > 1 and all(isinstance(one, Mapping) for one in values):
        return _records(values)
    return [plain(one) for one in values]


def _table(values: list[Any]) -> Tensor | None:
    """Return numbers, or lists of equal length of numbers, as a tensor; None for anything else."""
    try:
        found = np.array(values)
    except ValueError:
        return None
    return torch.from_numpy(found) if found.dtype.kind in "if" else None


def _records(rows: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one hash of the numbers of all records, the numbers of the last record, and the words by column."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    words = {name: column for name, column in columns.items() if any(isinstance(one, str) for one in column)}
    numbers = {name: plain(column) for name, column in columns.items() if name not in words}
    last = {name: plain(column[-1]) for name, column in columns.items() if name not in words}
    digest = hashlib.sha256(json.dumps(numbers).encode()).hexdigest()
    found = {"sha256": digest[:HASH_CHARACTERS], "rows": len(rows), "last": last}
    return found | ({"words": plain(words)} if words else {})


def _long_text(text: str) -> dict[str, Any]:
    return {"text": hashlib.sha256(text.encode()).hexdigest()[:HASH_CHARACTERS], "begins": text[:24]}


def write(cases: Mapping[str, Mapping[str, Any]]) -> None:
    """Write all cases, with one output on each line."""
    blocks = []
    for name, outputs in sorted(cases.items()):
        lines = ",\n".join(f"  {json.dumps(key)}: {_compact(value)}" for key, value in outputs.items())
        blocks.append(f" {json.dumps(name)}: {{\n{lines}\n }}")
    cased = ",\n".join(blocks)
    FILE.write_text(f'{{"machine": {_compact(machine())},\n"cases": {{\n{cased}\n}}}}\n')


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def read() -> dict[str, Any]:
    """Return the frozen file: `machine` and `cases`."""
    return dict(json.loads(FILE.read_text()))


# -- comparing -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Difference:
    """An output that differs from the frozen one."""

    place: str
    frozen: Any
    now: Any
    words: bool = False
    """Whether only words differ."""

    def __str__(self) -> str:
        return f"{self.place} [{self._kind()}]\n    frozen  {self.frozen}\n    now     {self.now}"

    def _kind(self) -> str:
        if self.words:
            return "words; accept them with: python -m tests.frozen.freeze --words"
        one, two = _numbers(self.frozen), _numbers(self.now)
        if len(one) != len(two) or not one:
            return "another kind of value"
        apart = max(abs(a - b) for a, b in zip(one, two, strict=True)) / (max(map(abs, one)) or 1.0)
        return f"{'ROUNDING' if apart < RELATIVE else 'ANOTHER VALUE'}, {apart:.1e} apart"


def differences(frozen: Any, now: Any, place: str, exact: bool) -> Iterator[Difference]:
    """Yield the places where two outputs differ: in any bit if `exact`, else by more than rounding."""
    kind = _kind(frozen)
    if kind == _kind(now) == "mapping":
        if exact and frozen.get("sha256") != now.get("sha256"):  # of all records; the last one is compared below
            yield Difference(f"{place} > a record", frozen.get("last"), now.get("last"))
        for key in [key for key in frozen | now if key != "sha256"]:
            yield from differences(frozen.get(key, ABSENT), now.get(key, ABSENT), f"{place} > {key}", exact)
    elif kind == _kind(now) == "list" and len(frozen) == len(now):
        for number, (one, two) in enumerate(zip(frozen, now, strict=True)):
            yield from differences(one, two, f"{place}[{number}]", exact)
    elif kind != _kind(now) or not _same(kind, frozen, now, exact):
        yield Difference(place, frozen, now, words=kind == _kind(now) == "text")


def _same(kind: str, frozen: Any, now: Any, exact: bool) -> bool:
    if kind == "tensors":
        return bool(frozen["sha256"] == now["sha256"]) if exact else _close_tensors(frozen, now)
    if kind == "number":
        return _equal(frozen, now) if exact else _close(frozen, now)
    return bool(frozen == now)


ABSENT = ["absent"]
"""A value for an absent output; no output equals it."""


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return "tensors" if "norm" in value and "sha256" in value else "text" if "begins" in value else "mapping"
    if isinstance(value, str):
        return "text"
    if isinstance(value, list):
        return "list"
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else "other"


def _close_tensors(frozen: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether types and shapes are equal, and norms and values are close relative to the norm."""
    if list(frozen["values"]) != list(now["values"]) or not _close(frozen["norm"], now["norm"]):
        return False
    for one, two in zip(frozen["values"].values(), now["values"].values(), strict=True):
        if one[0] != two[0]:
            return False
        if any(not _close(a, b, RELATIVE * frozen["norm"] + ABSOLUTE) for a, b in zip(one[1:], two[1:], strict=True)):
            return False
    return True


def _equal(one: float, two: float) -> bool:
    return type(one) is type(two) and (one == two or (math.isnan(one) and math.isnan(two)))


def _close(one: float, two: float, room: float = ABSOLUTE) -> bool:
    return (math.isnan(one) and math.isnan(two)) or math.isclose(one, two, rel_tol=RELATIVE, abs_tol=room)


def _numbers(value: Any) -> list[float]:
    if _kind(value) == "number":
        return [float(value)] if math.isfinite(value) else []
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [number for part in parts for number in _numbers(part)]
