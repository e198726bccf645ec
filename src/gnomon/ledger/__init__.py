"""What was spent on each data set, over all runs, durable before anything is released."""

from gnomon.ledger.budget import OverBudget
from gnomon.ledger.file import Head, LedgerError
from gnomon.ledger.ledger import Ledger, Total, default_path, needed_path
from gnomon.ledger.state import Budget

__all__ = ["Budget", "Head", "Ledger", "LedgerError", "OverBudget", "Total", "default_path", "needed_path"]
