"""Data sets by name, read from their official files."""

from gnomon.data.records import Records
from gnomon.data.sources.registry import NAMES, load
from gnomon.data.sources.source import Source
from gnomon.errors import DataError

__all__ = ["NAMES", "DataError", "Records", "Source", "load"]
