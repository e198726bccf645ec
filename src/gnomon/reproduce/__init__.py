"""Tables and figures of the papers, one file each: what to run, and what was published."""

from gnomon.reproduce.experiment import Experiment, Line, available, read_experiment
from gnomon.reproduce.result import Row, markdown, table
from gnomon.reproduce.run import reproduce

__all__ = ["Experiment", "Line", "Row", "available", "markdown", "read_experiment", "reproduce", "table"]
