"""Data sets by name, read from their official files."""

from gnomon.data.sources.errors import DataError
from gnomon.data.sources.records import Records
from gnomon.data.sources.registry import NAMES, load
from gnomon.data.sources.source import Source

__all__ = ["NAMES", "DataError", "Records", "Source", "load"]
