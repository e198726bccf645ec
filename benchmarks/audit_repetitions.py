"""How often the audit's lower bounds lie above an honest claim: `python benchmarks/audit_repetitions.py 1000`.

The deterministic parts are measured once; every repetition draws fresh releases from the real Trainer step. At a
confidence of 99.9 % about one repetition in a thousand may exceed the claim by chance.
"""

from __future__ import annotations

import sys
import time

import torch
from tqdm import tqdm

import gnomon
from gnomon.audit import Probe, ProbeBench, StepAudit, TrainerTarget, probe_loss
from gnomon.audit.audit import BOUNDS


def repeat(times: int, releases: int = 30, confidence: float = 0.999, size: int = 64) -> dict[str, list[int]]:
    """The repetitions in which a bound lay above the claim or a test failed, by name."""
    model = Probe(size)
    trainer = gnomon.Trainer(
        model, probe_loss, torch.optim.SGD(model.parameters(), lr=1.0), sample_rate=0.01, expected_batch_size=16,
        noise_multiplier=1.4147, target_delta=1e-5, steps=1000, progress=False,
    )  # fmt: skip
    bench = ProbeBench(size, 1.0)
    step = StepAudit(TrainerTarget(trainer, bench.one), bench, canaries=32)
    found: dict[str, list[int]] = {}
    for i in tqdm(range(times), mininterval=10):
        findings, lower, _ = step.run(releases, (1 - confidence) / BOUNDS)
        over = [name for name, mu in lower.items() if mu > step.target.claim.mu]
        for name in over + [f"{one.part} {one.what}" for one in findings if not one.ok]:
            found.setdefault(name, []).append(i)
    return found


def main() -> None:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    started = time.monotonic()
    found = repeat(times)
    bad = {i for those in found.values() for i in those}
    print(f"{times} honest repetitions in {time.monotonic() - started:.0f} s: {len(bad)} above the claim or failed")
    for name, those in found.items():
        print(f"  {name}: {len(those)}")


if __name__ == "__main__":
    main()
