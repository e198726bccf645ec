"""Data sets by name, read from their official files."""

from gnomon.data.sources.registry import NAMES, load
from gnomon.data.sources.source import Source

__all__ = ["NAMES", "Source", "load"]
