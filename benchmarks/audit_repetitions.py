"""The false-alarm rate of the audit on a correct step.

    python benchmarks/audit_repetitions.py 1000 [--draws N]

The deterministic parts of the audit are measured once; every repetition draws new releases and new noise from the real
Trainer step. At a confidence of 99.9 % about one repetition in a thousand may exceed the claim by chance, and each test
of a distribution fails with probability 1e-6.
"""

from __future__ import annotations

import argparse
import time

import torch
from tqdm import tqdm

import gnomon
from gnomon.audit import (
    Probe,
    ProbeAttackData,
    StepAudit,
    TrainerTarget,
    check_independent_sources,
    check_noise_distribution,
    probe_loss,
)
from gnomon.audit.audit import BOUNDS


def repeat(
    times: int, draws: int, releases: int = 30, confidence: float = 0.999, size: int = 64
) -> dict[str, list[int]]:
    """Return the repetitions in which a lower bound exceeded the claim or a test failed, by name."""
    model = Probe(size)
    trainer = gnomon.Trainer(
        model, probe_loss, torch.optim.SGD(model.parameters(), lr=1.0), sample_rate=0.01, expected_batch_size=16,
        noise_multiplier=1.4147, target_delta=1e-5, steps=1000, progress=False,
    )  # fmt: skip
    attack = ProbeAttackData(size, 1.0)
    step = StepAudit(TrainerTarget(trainer, attack.example), attack, canaries=32)
    failures: dict[str, list[int]] = {}
    for i in tqdm(range(times), mininterval=10):
        findings, lower, _ = step.run(releases, (1 - confidence) / BOUNDS)
        findings += check_noise_distribution(trainer, draws) + check_independent_sources(trainer)
        names = [name for name, mu in lower.items() if mu > step.target.claim.mu]
        names += [f"{finding.part} {finding.what}" for finding in findings if not finding.ok]
        for name in names:
            failures.setdefault(name, []).append(i)
    return failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("times", type=int, nargs="?", default=1000, help="repetitions (default: 1000)")
    parser.add_argument("--draws", type=int, default=2**22, help="normals drawn in each repetition (default: 2^22)")
    args = parser.parse_args()
    times, started = args.times, time.monotonic()
    failures = repeat(times, args.draws)
    failed = {i for repetitions in failures.values() for i in repetitions}
    seconds = time.monotonic() - started
    print(f"{times} repetitions of a correct step in {seconds:.0f} s: {len(failed)} above the claim or with a failure")
    for name, repetitions in failures.items():
        print(f"  {name}: {len(repetitions)}")


if __name__ == "__main__":
    main()
