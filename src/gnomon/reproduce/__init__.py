"""Tables and figures of the papers, one file each: what to run, and what was published."""

from gnomon.reproduce.experiment import Experiment, Line
from gnomon.reproduce.files import available, read_experiment
from gnomon.reproduce.result import Row, markdown, table
from gnomon.reproduce.run import reproduce
from gnomon.reproduce.series import Series

__all__ = ["Experiment", "Line", "Row", "Series", "available", "markdown", "read_experiment", "reproduce", "table"]
