"""Pictures of runs."""

from gnomon.report.curve import training_curve

__all__ = ["training_curve"]
