"""Tables and figures of the papers, one file each: what to run, and what was published."""

from gnomon.studies.reproduce.experiment import Experiment, ExperimentLine
from gnomon.studies.reproduce.files import available, read_experiment
from gnomon.studies.reproduce.result import ResultRow, markdown, table
from gnomon.studies.reproduce.run import reproduce
from gnomon.studies.reproduce.series import Series

__all__ = [
    "Experiment",
    "ExperimentLine",
    "ResultRow",
    "Series",
    "available",
    "markdown",
    "read_experiment",
    "reproduce",
    "table",
]
