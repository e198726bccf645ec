"""The privacy statement of a run: in words and as JSON, explained, and checked against its own numbers and a ledger."""

from gnomon.statement.consistency import changed_files, contradictions, file_hashes, recompute_epsilon
from gnomon.statement.explanation import explain
from gnomon.statement.statement import Statement
from gnomon.statement.verify import check_run

__all__ = [
    "Statement",
    "changed_files",
    "check_run",
    "contradictions",
    "explain",
    "file_hashes",
    "recompute_epsilon",
]
