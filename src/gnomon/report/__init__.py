"""Pictures of runs."""

from gnomon.report.comparison import comparison
from gnomon.report.curve import training_curve

__all__ = ["comparison", "training_curve"]
