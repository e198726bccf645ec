"""Time of one private compressed step beside one full-gradient step, on dense or sparse rows.

python benchmarks/compressed.py [--features 100000] [--records 10000] [--directions 200] [--density 1.0] [--threads 2]
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import nn

from gnomon import Trainer
from gnomon.accounting import FullBatch
from gnomon.data import CsrRecords, Loader
from gnomon.losses import logistic
from gnomon.methods import FORMS, dp_comp_gd, dp_sgd
from gnomon.models import SparseLinear
from gnomon.release import SeededNoise
from measure import Step, by_turns


def problem(args: argparse.Namespace) -> tuple[Callable[[], nn.Module], Any]:
    """A maker of models at zero, and records."""
    rng = np.random.default_rng(0)
    targets = torch.from_numpy(rng.integers(0, 2, args.records))
    if args.density < 1:
        count = int(args.features * args.density)
        columns = np.sort(rng.integers(0, args.features, (args.records, count)), 1).ravel()
        values = rng.standard_normal(columns.size).astype(np.float32) / count**0.5
        starts = np.arange(0, columns.size + 1, count)
        rows = sparse.csr_matrix((values, columns, starts), shape=(args.records, args.features))
        return lambda: SparseLinear(args.features, 1), CsrRecords(rows, targets)
    torch.manual_seed(0)
    rows = torch.empty(args.records, args.features).normal_(std=args.features**-0.5)
    return lambda: _zero(nn.Linear(args.features, 1, bias=False)), (rows, targets)


def _zero(layer: nn.Linear) -> nn.Linear:
    nn.init.zeros_(layer.weight)
    return layer


def plain(make: Callable[[], nn.Module], data: Any) -> Step:
    """Forward, backward and step on all records at once, in plain torch."""
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    inputs, targets = Loader(data).take(torch.arange(len(Loader(data)))) if isinstance(data, CsrRecords) else data

    def step() -> None:
        optimizer.zero_grad()
        outputs = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
        logistic(outputs, targets).mean().backward()
        optimizer.step()

    return step


def private(make: Callable[[], nn.Module], data: Any, method: Any, records: int) -> Step:
    """One step of the Trainer on all records."""
    model = make()
    trainer = Trainer(
        model, logistic, torch.optim.SGD(model.parameters(), lr=1.0), method=method, sampler=FullBatch(),
        expected_batch_size=records, noise_multiplier=30.0, target_delta=1e-6, steps=10**6, noise=SeededNoise(0),
        progress=False,
    )  # fmt: skip
    batch = Loader(data).take(torch.arange(records)) if isinstance(data, CsrRecords) else data
    return lambda: trainer._step([batch])


def products(rows: torch.Tensor, directions: int) -> Step:
    """Every record times a sketch that is there already: what clipping after sketching cannot do without."""
    sketch = torch.randn(directions, rows.shape[1])
    return lambda: rows @ sketch.T


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=int, default=100_000)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--directions", type=int, default=200)
    parser.add_argument("--density", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--forms", default="linear-sketch,clip-after-sketch")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    make, data = problem(args)
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    steps = {"full gradient": plain(make, data), "dp-sgd": private(make, data, dp_sgd(), args.records)}
    for name in args.forms.split(","):
        method = dp_comp_gd("l1:5", args.directions, FORMS[name])
        steps[f"dp-comp-gd, {name}"] = private(make, data, method, args.records)
    if args.density == 1:
        steps["sketches of all records alone"] = products(data[0], args.directions)
    print(
        f"n = {args.records}, d = {args.features}, m = {args.directions}, "
        f"density {args.density:g}, {args.threads} threads"
    )
    for name, found in by_turns(steps, "full gradient", args.repeats).items():
        print(f"{name:<36} {found['milliseconds']:10.1f} ms   {found['ratio']:6.2f} x")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"data and start {base / 2**20:.2f} GiB, peak {peak / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
