"""The privacy statement: what is promised, in words and JSON, and the check that it fits its own numbers."""

from gnomon.statement.check import changed_files, misfits, recomputed
from gnomon.statement.statement import Statement
from gnomon.statement.verify import check_run

__all__ = ["Statement", "changed_files", "check_run", "misfits", "recomputed"]
