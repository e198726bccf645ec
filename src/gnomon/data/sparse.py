"""Records whose inputs are rows of a sparse matrix, handed out as padded lists of entries."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from gnomon.errors import SettingError


class CsrRecords:
    """Rows of a SciPy CSR matrix and their targets, for a model such as `gnomon.models.SparseLinear`.

    A batch's inputs are `(columns, values)`, both (B, longest row); what is missing has the value zero. Nothing of the
    size of the dense matrix ever exists.

    >>> records = CsrRecords(sparse.csr_matrix([[0.0, 2.0], [0.0, 0.0]]), torch.tensor([1, 0]))
    >>> (columns, values), targets = records.take(torch.tensor([0, 1]))
    >>> columns.tolist(), values.tolist(), targets.tolist()
    ([[1], [0]], [[2.0], [0.0]], [1, 0])
    """

    def __init__(self, matrix: Any, targets: Tensor, dtype: torch.dtype = torch.float32) -> None:
        self._matrix = sparse.csr_matrix(matrix)
        self._matrix.sum_duplicates()
        if self._matrix.shape[0] != len(targets):
            shapes = (self._matrix.shape[0], len(targets))
            raise SettingError("lengths of (matrix, targets)", shapes, "one target for each row")
        self._targets = targets
        self._values = torch.from_numpy(np.asarray(self._matrix.data)).to(dtype)

    def __len__(self) -> int:
        return int(self._matrix.shape[0])

    def take(self, positions: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Inputs and targets of some records."""
        starts = torch.from_numpy(self._matrix.indptr[:-1].astype(np.int64))[positions]
        ends = torch.from_numpy(self._matrix.indptr[1:].astype(np.int64))[positions]
        longest = int((ends - starts).max()) if len(positions) else 0
        places = starts[:, None] + torch.arange(max(1, longest))
        there = places < ends[:, None]
        places = torch.where(there, places, 0)
        if not len(self._values):
            empty = torch.zeros(len(positions), 1)
            return (empty.long(), empty.to(self._values.dtype)), self._targets[positions]
        columns = torch.from_numpy(self._matrix.indices)[places].long()
        inputs = (torch.where(there, columns, 0), torch.where(there, self._values[places], 0))
        return inputs, self._targets[positions]

    def targets(self, positions: Tensor) -> Tensor:
        """Targets of some records."""
        return self._targets[positions]

    def marks(self, positions: Tensor) -> list[bytes]:
        """One 16-byte hash for each record, of the entries of its row that are not zero.

        Stored zeros, the order of the entries and the other rows do not count. Values are compared as float32.

        >>> rows = CsrRecords(sparse.csr_matrix([[0.0, 2.0, 0.0], [1.0, 2.0, 3.0]]), torch.zeros(2))
        >>> alone = CsrRecords(sparse.csr_matrix([[0.0, 2.0]]), torch.ones(1))
        >>> rows.marks(torch.tensor([0, 1]))[0] == alone.marks(torch.tensor([0]))[0]
        True
        """
        starts, columns, values = self._matrix.indptr, self._matrix.indices, self._values.float().numpy()
        marks = []
        for row in positions.tolist():
            entries = slice(starts[row], starts[row + 1])
            there = values[entries] != 0
            content = columns[entries][there].astype(np.int64).tobytes() + values[entries][there].tobytes()
            marks.append(hashlib.blake2b(content, digest_size=16).digest())
        return marks

    @classmethod
    def of(cls, inputs: Any) -> CsrRecords:
        """Rows that were handed out as `(columns, values)`, or written out as a matrix, without targets.

        >>> records = CsrRecords(sparse.csr_matrix([[0.0, 2.0, 1.0], [4.0, 0.0, 0.0]]), torch.zeros(2))
        >>> everybody = torch.arange(2)
        >>> CsrRecords.of(records.take(everybody)[0]).marks(everybody) == records.marks(everybody)
        True
        """
        if isinstance(inputs, Tensor) and inputs.dim() == 2:
            return cls(sparse.csr_matrix(inputs.detach().cpu().float().numpy()), torch.zeros(len(inputs)))
        if _are_entries(inputs):
            columns, values = (one.detach().cpu() for one in inputs)
            ends = np.arange(len(columns) + 1) * columns.shape[1]
            shape = (len(columns), int(columns.max()) + 1 if columns.numel() else 1)
            flat = (values.float().flatten().numpy(), columns.long().flatten().numpy(), ends)
            return cls(sparse.csr_matrix(flat, shape=shape, copy=True), torch.zeros(len(columns)))
        allowed = "CsrRecords, (columns, values) or a matrix: nothing else can be compared with sparse rows"
        raise SettingError("inputs beside CsrRecords", type(inputs).__name__, allowed)


def _are_entries(inputs: Any) -> bool:
    if not (isinstance(inputs, tuple | list) and len(inputs) == 2 and all(isinstance(one, Tensor) for one in inputs)):
        return False
    columns, values = inputs
    return columns.dim() == 2 and columns.shape == values.shape and not columns.is_floating_point()
