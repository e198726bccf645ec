"""Pictures of runs, and the page that tells about them."""

from gnomon.report.audit import audit_scores
from gnomon.report.comparison import comparison, comparison_pictures
from gnomon.report.curve import training_curve
from gnomon.report.diagnostics import diagnostic_pictures
from gnomon.report.page import render, report
from gnomon.report.picture import Picture
from gnomon.report.training import training_pictures

__all__ = [
    "Picture",
    "audit_scores",
    "comparison",
    "comparison_pictures",
    "diagnostic_pictures",
    "render",
    "report",
    "training_curve",
    "training_pictures",
]
