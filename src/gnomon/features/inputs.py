"""Records as `compute` reads them: tensors, arrays, texts or data sets, a chunk at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnomon.data.fingerprint import content_digest
from gnomon.data.loader import Loader
from gnomon.data.records import Records
from gnomon.errors import DataError
from gnomon.features.feature_map import record_fingerprints

CHUNK = 4096
"""Records that are hashed at a time."""


class Inputs:
    """The inputs of records in a fixed order.

    Raises:
        DataError: the type cannot be read, or there is no record.

    >>> Inputs(["a text", "another"]).between(0, 1, torch.device("cpu"))
    ['a text']
    >>> Inputs(np.eye(3)).at([0, 2], torch.device("cpu")).shape
    torch.Size([2, 3])
    """

    def __init__(self, inputs: Any) -> None:
        if isinstance(inputs, Records):
            inputs = inputs.inputs
        texts = isinstance(inputs, list | tuple) and all(isinstance(text, str) for text in inputs)
        numbers = isinstance(inputs, np.ndarray) and inputs.dtype.kind in "biuf"
        if not (texts or numbers or isinstance(inputs, Tensor | Loader)):
            kind = f"an array of {inputs.dtype}" if isinstance(inputs, np.ndarray) else f"a {type(inputs).__name__}"
            remedy = "give a tensor, an array of numbers, Records, a list of str, or a gnomon.data.Loader"
            raise DataError("the inputs", f"are {kind}", remedy)
        if isinstance(inputs, Tensor | np.ndarray) and not inputs.ndim:
            raise DataError("the inputs", "are a single number", "give a tensor whose first dimension is the record")
        if isinstance(inputs, Loader) and inputs.left_out:
            raise DataError("the inputs", "are a Loader that leaves out records", "give a Loader of all records")
        self._inputs: Any = inputs
        if not len(self):
            raise DataError("the inputs", "are empty", "give at least one record")

    def __len__(self) -> int:
        return len(self._inputs)

    def between(self, start: int, stop: int, device: torch.device) -> Any:
        """Return the inputs from `start` up to `stop`: a tensor on the device, or a list of texts."""
        stop = min(stop, len(self))
        if isinstance(self._inputs, Loader):
            batch = self._inputs.take(torch.arange(start, stop))[0]
            if not isinstance(batch, Tensor):
                problem = f"of a record are a {type(batch).__name__}"
                raise DataError("the inputs", problem, "give a data set whose inputs are one tensor each")
            return batch.to(device)
        part = self._inputs[start:stop]
        if isinstance(part, np.ndarray):
            part = torch.from_numpy(np.array(part))  # a copy: torch cannot share a file that is only read
        return part.to(device) if isinstance(part, Tensor) else list(part)

    def at(self, positions: Sequence[int], device: torch.device) -> Any:
        """Return the inputs at a few positions."""
        rows = [self.between(position, position + 1, device) for position in positions]
        return torch.cat(rows) if isinstance(rows[0], Tensor) else [text for row in rows for text in row]

    def fingerprints(self) -> Iterator[bytes]:
        """Yield the fingerprint of each record."""
        for part in self._parts():
            yield from record_fingerprints(part)

    def digest(self) -> str:
        """Return a hash of all inputs, their order, type and shape."""
        digest = hashlib.sha256()
        for part in self._parts():
            if isinstance(part, Tensor):
                digest.update(content_digest([part]) or b"".join(record_fingerprints(part)))
            else:
                digest.update(b"".join(record_fingerprints(part)))
        return digest.hexdigest()

    def _parts(self) -> Iterator[Any]:
        for start in range(0, len(self), CHUNK):
            yield self.between(start, start + CHUNK, torch.device("cpu"))
