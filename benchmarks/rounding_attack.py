"""An attack on floating-point rounding: does one record change how the updates of other records are rounded?

A linear layer with few outputs rounds a sample differently at a different position in the batch. The observer of one
step knows all other records, and looks for the shift of the released sum that one additional record at the front
causes; the success rate is compared with the bound of the claim. Full batches and Poisson batches are attacked with
crafted records, on which both outputs are the same sum in opposite orders, and by a malicious server that sends two
rows of weights, a few units in the last place apart, to a client with ordinary records.

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


class GradientRecorder(torch.optim.SGD):
    """An optimizer that records each released gradient and does not change the weights."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=1.0)
        self.gradients: list[Tensor] = []

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        grads = [p.grad for group in self.param_groups for p in group["params"]]
        self.gradients.append(torch.cat([grad.flatten().double() for grad in grads]))


def mirrored_weight(generator: torch.Generator) -> Tensor:
    """Return a weight matrix of two rows, one the reverse of the other.

    On a palindrome both outputs are the same sum, added in opposite orders.
    """
    row = torch.randn(WIDTH, generator=generator)
    return torch.stack([row, row.flip(0)])


def palindromes(weight: Tensor, generator: torch.Generator, attempts: int = 200) -> Tensor:
    """Return palindromic records whose larger output changes when they move by one position in the batch.

    Returns:
        `CRAFTED` records; none if this machine rounds all rows of a linear layer alike.
    """
    core = 1e3 * torch.randint(-(2**20), 2**20, (WIDTH // 2,), generator=generator).float()
    records: list[Tensor] = []
    for _ in range(attempts):
        half = core + 1e3 * torch.randint(-(2**14), 2**14, (4000, WIDTH // 2), generator=generator).float()
        x = torch.cat([half, half.flip(1)], 1)
        outputs, shifted = F.linear(x, weight), F.linear(torch.cat([x[:1], x]), weight)[1:]
        changes = (outputs[:, 0] > outputs[:, 1]) & (shifted[:, 0] < shifted[:, 1])
        records += [x[i] for i in changes.nonzero().flatten().tolist() if i % 2 == 0]
        if len(records) >= CRAFTED:
            return torch.stack(records[:CRAFTED])
    return torch.zeros(0, WIDTH)


def crafted_inputs(palindromes: Tensor, count: int) -> Tensor:
    """Return `count` records: the palindromes at the first even positions, and zeros elsewhere."""
    inputs = torch.zeros(count, WIDTH)
    inputs[::2][:CRAFTED] = palindromes
    return inputs


def crafted(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return weights, inputs and labels of the attack with crafted records."""
    weight = mirrored_weight(generator)
    records = palindromes(weight, generator)
    if not len(records):
        raise SystemExit("this machine rounds all rows of a linear layer alike: the attack is not possible")
    return weight, crafted_inputs(records, RECORDS), torch.zeros(RECORDS, dtype=torch.long)


def ordinary(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weights of a malicious server, and ordinary inputs and labels."""
    row = 1e9 * torch.randn(WIDTH, generator=generator)
    units = torch.randint(-2, 3, (WIDTH,), generator=generator)
    neighbour = row * (1 + 2.0**-23 * units)
    inputs = torch.randn(RECORDS, WIDTH, generator=generator)
    return torch.stack([row, neighbour]), inputs, torch.randint(0, 2, (RECORDS,), generator=generator)


def released_sums(
    weight: Tensor, inputs: Tensor, targets: Tensor, sampler: Sampling, runs: int, *, extra: bool
) -> Tensor:
    """Return the noise-free sums of many steps from the same weights, in units of the clip bound, (runs, p).

    With `extra` the batch has an additional record at the front, which has no update of its own.
    """
    if extra:
        inputs = torch.cat([torch.zeros(1, WIDTH), inputs])
        targets = torch.cat([targets[:1] * 0, targets])
    model = nn.Linear(WIDTH, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(weight)
    recorder = GradientRecorder(model)
    trainer = Trainer(
        model, LOSS, recorder, sampler=sampler, expected_batch_size=1, noise_multiplier=0.0, target_delta=1e-5,
        steps=runs, progress=False,
    )  # fmt: skip
    for batch in trainer.batches((inputs, targets)):
        trainer.step(*batch)
    return torch.stack(recorder.gradients)


def attack(without: Tensor, with_extra: Tensor, generator: torch.Generator) -> tuple[float, float]:
    """Return the distance of the mean sums, and the success rate of an observer of noisy sums.

    The observer learns direction and threshold on the first half of the sums, and is evaluated on the second half.
    """
    half = len(without) // 2
    shift = with_extra[:half].mean(0) - without[:half].mean(0)
    direction = F.normalize(shift, dim=0) if float(shift.norm()) else torch.zeros_like(shift)
    scores = [sums @ direction for sums in (without, with_extra)]
    noisy = [score + SIGMA * torch.randn(len(score), generator=generator, dtype=torch.float64) for score in scores]
    threshold = (scores[0][:half].mean() + scores[1][:half].mean()) / 2
    correct = (noisy[0][half:] <= threshold).double().mean() + (noisy[1][half:] > threshold).double().mean()
    return float(shift.norm()), float(correct) / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400, help="steps with and without the record (default 400)")
    parser.add_argument("--out", type=Path, help="file for the results, as JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    attacks: dict[str, tuple[Callable[[torch.Generator], tuple[Tensor, Tensor, Tensor]], Sampling]] = {
        "full batch, crafted records": (crafted, FullBatch()),
        "Poisson 0.5, crafted records": (crafted, Poisson(0.5)),
        "weights of a malicious server, full batch": (ordinary, FullBatch()),
        "weights of a malicious server, Poisson 0.5": (ordinary, Poisson(0.5)),
    }
    allowed, results = NormalDist().cdf(1 / (2 * SIGMA)), {}
    error = 3 * math.sqrt(0.25 / args.runs)
    print(
        f"noise multiplier {SIGMA:g}: the claim allows a success rate of {allowed:.1%}; "
        f"three standard errors are {error:.1%}"
    )
    for name, (make, sampler) in attacks.items():
        weight, inputs, targets = make(generator)
        sums = [released_sums(weight, inputs, targets, sampler, args.runs, extra=extra) for extra in (False, True)]
        shift, success = attack(*sums, generator)
        results[name] = {"mean sum moved by, in C": shift, "observer right": success}
        print(f"{name:<44} mean sum moved by {shift:6.2f} C, observer correct in {success:.1%}", flush=True)
    if args.out is not None:
        args.out.write_text(json.dumps({"allowed": allowed, "runs": args.runs, "attacks": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
