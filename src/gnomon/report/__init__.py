"""The report: one self-contained HTML page about runs, comparisons and reproductions."""

from gnomon.report.page import render, report

__all__ = ["render", "report"]
