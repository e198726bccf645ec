"""How often an honest step is called violated: `python benchmarks/audit_repetitions.py 1000 [--draws N]`.

The deterministic parts are measured once; every repetition draws fresh releases and fresh noise from the real Trainer
step. At a confidence of 99.9 % about one repetition in a thousand may exceed the claim by chance, and each test of a
law fails once in a million times.
"""

from __future__ import annotations

import argparse
import time

import torch
from tqdm import tqdm

import gnomon
from gnomon.audit import Probe, ProbeBench, StepAudit, TrainerTarget, noise_law, probe_loss, separate_sources
from gnomon.audit.audit import BOUNDS


def repeat(
    times: int, draws: int, releases: int = 30, confidence: float = 0.999, size: int = 64
) -> dict[str, list[int]]:
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
        findings += noise_law(trainer, draws) + separate_sources(trainer)
        over = [name for name, mu in lower.items() if mu > step.target.claim.mu]
        for name in over + [f"{one.part} {one.what}" for one in findings if not one.ok]:
            found.setdefault(name, []).append(i)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("times", type=int, nargs="?", default=1000)
    parser.add_argument("--draws", type=int, default=2**22, help="normals drawn in each repetition")
    args = parser.parse_args()
    times, started = args.times, time.monotonic()
    found = repeat(times, args.draws)
    bad = {i for those in found.values() for i in those}
    print(f"{times} honest repetitions in {time.monotonic() - started:.0f} s: {len(bad)} above the claim or failed")
    for name, those in found.items():
        print(f"  {name}: {len(those)}")


if __name__ == "__main__":
    main()
