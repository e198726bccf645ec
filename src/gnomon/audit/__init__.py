"""Privacy audits: attacks on the real training step that give a lower bound on its epsilon."""

from gnomon.audit.attack_data import Probe, ProbeAttackData, RecordAttackData, probe_loss
from gnomon.audit.audit import audit
from gnomon.audit.claim import Claim
from gnomon.audit.findings import Finding, LowerBound
from gnomon.audit.noise import check_independent_sources, check_noise_distribution
from gnomon.audit.onerun import OneRun, one_run
from gnomon.audit.report import Report
from gnomon.audit.sampling import check_sampling
from gnomon.audit.step import StepAudit
from gnomon.audit.target import Target, TrainerTarget

__all__ = [
    "Claim",
    "Finding",
    "LowerBound",
    "OneRun",
    "Probe",
    "ProbeAttackData",
    "RecordAttackData",
    "Report",
    "StepAudit",
    "Target",
    "TrainerTarget",
    "audit",
    "check_independent_sources",
    "check_noise_distribution",
    "check_sampling",
    "one_run",
    "probe_loss",
]
