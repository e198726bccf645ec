"""Can one record be told from how the others round? An observer of one step, against the bound of the claim.

A linear layer with few outputs rounds a row differently at another row of the batch. The observer knows all other
records and looks for the shift that one record, put in front of them, causes in a released sum. Full batches and
Poisson batches are attacked, once with crafted records (two outputs that are the same sum in opposite orders), and once
by a malicious server that sends a client with ordinary records rows of weights a few units in the last place apart.

    python benchmarks/rounding_attack.py [--runs 400] [--out benchmarks/results/rounding_attack.json]
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gnomon import Trainer
from gnomon.accounting import FullBatch, Poisson, Sampling

WIDTH, RECORDS, CRAFTED, SIGMA = 30, 600, 24, 4.0
LOSS = nn.CrossEntropyLoss(reduction="none")


class Reader(torch.optim.SGD):
    """Keeps each released gradient and leaves the weights where they are."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=1.0)
        self.seen: list[Tensor] = []

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        grads = [p.grad for group in self.param_groups for p in group["params"]]
        self.seen.append(torch.cat([grad.flatten().double() for grad in grads]))


def palindromes(weight: Tensor, draw: torch.Generator) -> Tensor:
    """Records whose larger output is another one at the next row."""
    core, found = 1e3 * torch.randint(-(2**20), 2**20, (WIDTH // 2,), generator=draw).float(), []
    for _ in range(200):
        half = core + 1e3 * torch.randint(-(2**14), 2**14, (4000, WIDTH // 2), generator=draw).float()
        x = torch.cat([half, half.flip(1)], 1)
        here, further = F.linear(x, weight), F.linear(torch.cat([x[:1], x]), weight)[1:]
        flips = (here[:, 0] > here[:, 1]) & (further[:, 0] < further[:, 1])
        found += [x[i] for i in flips.nonzero().flatten().tolist() if i % 2 == 0]
        if len(found) >= CRAFTED:
            return torch.stack(found[:CRAFTED])
    raise SystemExit("this machine rounds all rows of a linear layer alike: there is nothing to attack")


def crafted(draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, records and labels of the attack with crafted records."""
    row = torch.randn(WIDTH, generator=draw)
    weight = torch.stack([row, row.flip(0)])
    inputs = torch.zeros(RECORDS, WIDTH)
    inputs[::2][:CRAFTED] = palindromes(weight, draw)
    return weight, inputs, torch.zeros(RECORDS, dtype=torch.long)


def ordinary(draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Weights that a malicious server sends, and ordinary records."""
    row = 1e9 * torch.randn(WIDTH, generator=draw)
    steps = torch.randint(-2, 3, (WIDTH,), generator=draw)
    near = row * (1 + 2.0**-23 * steps)
    inputs = torch.randn(RECORDS, WIDTH, generator=draw)
    return torch.stack([row, near]), inputs, torch.randint(0, 2, (RECORDS,), generator=draw)


def steps(weight: Tensor, inputs: Tensor, targets: Tensor, sampler: Sampling, runs: int, *, extra: bool) -> Tensor:
    """The exact sums of many steps from the same weights, in units of the clip bound, (runs, p)."""
    if extra:
        inputs = torch.cat([torch.zeros(1, WIDTH), inputs])
        targets = torch.cat([targets[:1] * 0, targets])
    model = nn.Linear(WIDTH, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(weight)
    reader = Reader(model)
    trainer = Trainer(
        model, LOSS, reader, sampler=sampler, expected_batch_size=1, noise_multiplier=0.0, target_delta=1e-5,
        steps=runs, progress=False,
    )  # fmt: skip
    for batch in trainer.batches((inputs, targets)):
        trainer.step(*batch)
    return torch.stack(reader.seen)


def attack(without: Tensor, with_it: Tensor, draw: torch.Generator) -> tuple[float, float]:
    """How far apart the mean sums are, and how often an observer of a noisy one is right."""
    half = len(without) // 2
    shift = with_it[:half].mean(0) - without[:half].mean(0)
    direction = F.normalize(shift, dim=0) if float(shift.norm()) else torch.zeros_like(shift)
    scores = [part @ direction for part in (without, with_it)]
    noisy = [score + SIGMA * torch.randn(len(score), generator=draw, dtype=torch.float64) for score in scores]
    middle = (scores[0][:half].mean() + scores[1][:half].mean()) / 2
    right = (noisy[0][half:] <= middle).double().mean() + (noisy[1][half:] > middle).double().mean()
    return float(shift.norm()), float(right) / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400, help="steps with and without the record (default 400)")
    parser.add_argument("--out", type=Path, help="file for the results, as JSON")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    kinds: dict[str, tuple[Callable[[torch.Generator], tuple[Tensor, Tensor, Tensor]], Sampling]] = {
        "full batch, crafted records": (crafted, FullBatch()),
        "Poisson 0.5, crafted records": (crafted, Poisson(0.5)),
        "weights of a malicious server, full batch": (ordinary, FullBatch()),
        "weights of a malicious server, Poisson 0.5": (ordinary, Poisson(0.5)),
    }
    allowed, found = NormalDist().cdf(1 / (2 * SIGMA)), {}
    error = 3 * math.sqrt(0.25 / chosen.runs)
    print(
        f"noise multiplier {SIGMA:g}: the claim allows {allowed:.1%}; three standard errors of a share are {error:.1%}"
    )
    for name, (make, sampler) in kinds.items():
        weight, inputs, targets = make(draw)
        sums = [steps(weight, inputs, targets, sampler, chosen.runs, extra=extra) for extra in (False, True)]
        moved, right = attack(*sums, draw)
        found[name] = {"mean sum moved by, in C": moved, "observer right": right}
        print(f"{name:<44} mean sum moved by {moved:6.2f} C, observer right {right:.1%}", flush=True)
    if chosen.out is not None:
        chosen.out.write_text(json.dumps({"allowed": allowed, "runs": chosen.runs, "attacks": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
