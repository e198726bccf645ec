"""The cost of diagnostics, relative to a step and to training at the default interval.

    python benchmarks/diagnose.py [--steps 40]

The time is CPU time of one thread with the CNN of the papers, batches of 250 and 100 public records. Records are random
numbers, because the time does not depend on them. Steps with and without diagnostics alternate in one run.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

from gnomon import Trainer
from gnomon.diagnose import Diagnostics
from gnomon.diagnose.observer import EVERY
from gnomon.memory import keep_memory
from gnomon.methods import Method, dp_sgd, pcdp
from gnomon.models import paper_cnn


def measure(name: str, method: Method, public: tuple[torch.Tensor, torch.Tensor] | None, steps: int) -> str:
    """Return the cost of diagnostics for one method as a row of a Markdown table."""
    model = paper_cnn((1, 28, 28), 10)
    trainer = Trainer(
        model, nn.CrossEntropyLoss(reduction="none"), torch.optim.SGD(model.parameters(), lr=1.0), method=method,
        max_grad_norm=0.01, sample_rate=0.025, expected_batch_size=250, noise_multiplier=4.0, target_delta=1e-5,
        steps=2 * steps + 2, progress=False, observers=[Diagnostics(lambda record: None, every=2, public=public)],
    )  # fmt: skip
    data = (torch.randn(10_000, 1, 28, 28), torch.randint(0, 10, (10_000,)))
    spent = [0.0, 0.0]
    started = time.process_time()
    for number, (inputs, targets) in enumerate(trainer.batches(data)):
        trainer.step(inputs, targets)
        now = time.process_time()
        if number > 1:  # the first two steps include the checks of the model
            spent[number % 2] += now - started
        started = now
    diagnosed, plain = spent
    cost = (diagnosed - plain) / plain
    return f"| {name} | {1000 * plain / steps:.1f} | {cost:.2f} | {100 * cost / EVERY:.1f} % |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="steps with and without diagnostics (default: 40)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()  # as the command line does
    torch.manual_seed(0)
    public = (torch.randn(100, 1, 28, 28), torch.arange(100) % 10)
    print(f"| method | CPU ms per step | diagnostics, in steps | of training, every {EVERY} steps |\n|---|---|---|---|")
    print(measure("DP-SGD", dp_sgd(), None, args.steps))
    print(measure("DP-SGD, with public records", dp_sgd(), public, args.steps))
    print(measure("PCDP-SGD, rank 100", pcdp(public, rank=100), None, args.steps))


if __name__ == "__main__":
    main()
