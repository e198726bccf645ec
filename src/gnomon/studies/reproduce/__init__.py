"""Reproductions of the papers' tables and figures. Each has a YAML file with settings and published results."""

from gnomon.studies.reproduce.experiment import Experiment, ExperimentLine
from gnomon.studies.reproduce.experiment_files import available, read_experiment
from gnomon.studies.reproduce.results import ResultRow, Series
from gnomon.studies.reproduce.run import reproduce
from gnomon.studies.reproduce.tables import csv_table, markdown

__all__ = [
    "Experiment",
    "ExperimentLine",
    "ResultRow",
    "Series",
    "available",
    "csv_table",
    "markdown",
    "read_experiment",
    "reproduce",
]
