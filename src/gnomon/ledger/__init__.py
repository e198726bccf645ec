"""The ledger: the privacy spending on each data set over all runs, durable before anything is released."""

from gnomon.ledger.budget import OverBudget
from gnomon.ledger.file import Head, LedgerError, LedgerFileError, LedgerStateError
from gnomon.ledger.ledger import Ledger, Total, default_path, required_path
from gnomon.ledger.state import Budget

__all__ = [
    "Budget",
    "Head",
    "Ledger",
    "LedgerError",
    "LedgerFileError",
    "LedgerStateError",
    "OverBudget",
    "Total",
    "default_path",
    "required_path",
]
