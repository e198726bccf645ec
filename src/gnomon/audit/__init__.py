"""An audit that attacks the real Trainer step and says what epsilon it has at least."""

from gnomon.audit.audit import StepAudit, audit
from gnomon.audit.bench import Probe, ProbeBench, RecordBench, probe_loss
from gnomon.audit.claim import Claim
from gnomon.audit.findings import Finding, LowerBound
from gnomon.audit.noise import noise_law, separate_sources
from gnomon.audit.onerun import OneRun, one_run
from gnomon.audit.report import Report
from gnomon.audit.sampling import sampling
from gnomon.audit.target import Target, TrainerTarget

__all__ = [
    "Claim",
    "Finding",
    "LowerBound",
    "OneRun",
    "Probe",
    "ProbeBench",
    "RecordBench",
    "Report",
    "StepAudit",
    "Target",
    "TrainerTarget",
    "audit",
    "noise_law",
    "one_run",
    "probe_loss",
    "sampling",
    "separate_sources",
]
