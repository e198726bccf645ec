"""The report: one self-contained HTML page about runs."""

from gnomon.report.page import render, report

__all__ = ["render", "report"]
