"""Sparse records: inputs are rows of a CSR matrix, returned as padded lists of columns and values."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from gnomon.data.fingerprint import FINGERPRINT_BYTES, content_digest
from gnomon.errors import DataError


class CsrRecords:
    """Rows of a SciPy CSR matrix and their targets, for a model such as `gnomon.models.SparseLinear`.

    A batch's inputs are `(columns, values)`, both of shape (B, longest row), padded with the value zero. The dense
    matrix is never materialised.

    Args:
        matrix: a SciPy sparse matrix, or anything that `scipy.sparse.csr_matrix` accepts.
        targets: one target for each row.
        dtype: the type of the values in a batch.

    Raises:
        DataError: if the numbers of rows and targets differ.

    >>> records = CsrRecords(sparse.csr_matrix([[0.0, 2.0], [0.0, 0.0]]), torch.tensor([1, 0]))
    >>> (columns, values), targets = records.take(torch.tensor([0, 1]))
    >>> columns.tolist(), values.tolist(), targets.tolist()
    ([[1], [0]], [[2.0], [0.0]], [1, 0])
    """

    def __init__(self, matrix: Any, targets: Tensor, dtype: torch.dtype = torch.float32) -> None:
        self._matrix = sparse.csr_matrix(matrix)
        self._matrix.sum_duplicates()
        if self._matrix.shape[0] != len(targets):
            problem = f"have {self._matrix.shape[0]} rows and {len(targets)} targets"
            raise DataError("sparse records", problem, "give one target for each row")
        self._targets = targets
        self._values = torch.from_numpy(np.asarray(self._matrix.data)).to(dtype)

    def __len__(self) -> int:
        return int(self._matrix.shape[0])

    def take(self, positions: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Return the inputs and targets of the records at these positions."""
        starts = torch.from_numpy(self._matrix.indptr[:-1].astype(np.int64))[positions]
        ends = torch.from_numpy(self._matrix.indptr[1:].astype(np.int64))[positions]
        longest = int((ends - starts).max()) if len(positions) else 0
        entries = starts[:, None] + torch.arange(max(1, longest))  # (B, longest row), indices into the stored values
        present = entries < ends[:, None]
        entries = torch.where(present, entries, 0)
        if not len(self._values):
            empty = torch.zeros(len(positions), 1)
            return (empty.long(), empty.to(self._values.dtype)), self._targets[positions]
        columns = torch.from_numpy(self._matrix.indices)[entries].long()
        inputs = (torch.where(present, columns, 0), torch.where(present, self._values[entries], 0))
        return inputs, self._targets[positions]

    def targets(self, positions: Tensor) -> Tensor:
        """Return the targets of the records at these positions."""
        return self._targets[positions]

    def fingerprints(self, positions: Tensor) -> list[bytes]:
        """Return a 16-byte hash of the non-zero entries of each row at these positions.

        Stored zeros, the order of the entries and the other rows do not count. Values are compared as float32.

        >>> rows = CsrRecords(sparse.csr_matrix([[0.0, 2.0, 0.0], [1.0, 2.0, 3.0]]), torch.zeros(2))
        >>> alone = CsrRecords(sparse.csr_matrix([[0.0, 2.0]]), torch.ones(1))
        >>> rows.fingerprints(torch.tensor([0, 1]))[0] == alone.fingerprints(torch.tensor([0]))[0]
        True
        """
        starts, columns, values = self._matrix.indptr, self._matrix.indices, self._values.float().numpy()
        hashes = []
        for row in positions.tolist():
            entries = slice(starts[row], starts[row + 1])
            nonzero = values[entries] != 0
            content = columns[entries][nonzero].astype(np.int64).tobytes() + values[entries][nonzero].tobytes()
            hashes.append(hashlib.blake2b(content, digest_size=FINGERPRINT_BYTES).digest())
        return hashes

    def digest(self) -> bytes | None:
        """Return a digest of all rows as they are stored now (`content_digest`)."""
        index = (np.require(part, requirements="W") for part in (self._matrix.indptr, self._matrix.indices))
        return content_digest([*map(torch.from_numpy, index), self._values], "csr")

    @classmethod
    def from_inputs(cls, inputs: Any) -> CsrRecords:
        """Return rows from the inputs of a batch, `(columns, values)` or a dense matrix, with targets of zero.

        Raises:
            DataError: if the inputs have another form.

        >>> records = CsrRecords(sparse.csr_matrix([[0.0, 2.0, 1.0], [4.0, 0.0, 0.0]]), torch.zeros(2))
        >>> both = torch.arange(2)
        >>> CsrRecords.from_inputs(records.take(both)[0]).fingerprints(both) == records.fingerprints(both)
        True
        """
        if isinstance(inputs, Tensor) and inputs.dim() == 2:
            return cls(sparse.csr_matrix(inputs.detach().cpu().float().numpy()), torch.zeros(len(inputs)))
        if _are_entries(inputs):
            columns, values = (part.detach().cpu() for part in inputs)
            ends = np.arange(len(columns) + 1) * columns.shape[1]
            shape = (len(columns), int(columns.max()) + 1 if columns.numel() else 1)
            flat = (values.float().flatten().numpy(), columns.long().flatten().numpy(), ends)
            return cls(sparse.csr_matrix(flat, shape=shape, copy=True), torch.zeros(len(columns)))
        raise DataError(
            f"inputs of type {type(inputs).__name__}",
            "cannot be compared with the rows of CsrRecords",
            "give CsrRecords, (columns, values) or a matrix",
        )


def _are_entries(inputs: Any) -> bool:
    if not (isinstance(inputs, tuple | list) and len(inputs) == 2 and all(isinstance(part, Tensor) for part in inputs)):
        return False
    columns, values = inputs
    return columns.dim() == 2 and columns.shape == values.shape and not columns.is_floating_point()
