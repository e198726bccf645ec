"""Pictures of runs."""

from gnomon.report.audit import audit_scores
from gnomon.report.comparison import comparison
from gnomon.report.curve import training_curve

__all__ = ["audit_scores", "comparison", "training_curve"]
