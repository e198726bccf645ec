"""Federated methods side by side: IID over noise levels, extreme skew with and without noise, and fairness.

    python experiments/federated.py [--studies iid,skew,fair] [--data mnist,fashion-mnist] [--seeds 3] [--fast]

Settings are those of the papers where they are printed, and defaults of the library where they are not. Every method of
a study has the same clients, steps, bound and noise multiplier, so the same epsilon. Finished runs are kept: start it
again to go on. `--fast` runs everything on the digits in a few rounds, to see that it works; its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from gnomon.clipping import UpdateAndLoss
from gnomon.federated.setup import build
from gnomon.federated.simulate import InProcess, rounds
from gnomon.federated_config import FederateConfig
from gnomon.runs import plain

IID = ("fedavg", "fedprox", "fedlrs", "pfa", "fedpdp", "fedpcdp")
SKEWED = ("fedavg", "scaffold", "fedprox", "moon", "fedlrs", "pfa", "fedpdp", "fedpcdp")
FAIR = (("fedavg", {}), ("q-ffl", {"q": 1.0}), ("fedfdp", {"fair": 0.01}), ("fedfdp", {"fair": 0.1}))
SIGMAS = (4.0, 6.0, 8.0, 10.0)
JOINT = 2.0 / UpdateAndLoss(2.5).joint(1.0)
"""Updates with 2 and losses with 5 on one batch, as FedFDP has them. The others get the same, for the same epsilon."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run."""

    study: str
    label: str
    config: FederateConfig

    @property
    def key(self) -> str:
        settings = dataclasses.asdict(self.config) | {"data_dir": None, "study": self.study}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def cells(args: argparse.Namespace) -> Iterator[Cell]:
    """Everything that was asked for."""
    for data in ["digits"] if args.fast else args.data:
        base = FederateConfig(
            data=data, data_dir=args.data_dir, private=50_000, public=100, clients=10, rounds=80, participation=0.8,
            steps_per_round=5, batch_size=250, max_grad_norm=0.01, lr=args.lr,
        )  # fmt: skip
        if args.fast:
            small = {"private": None, "clients": 10, "rounds": 3, "batch_size": 32, "max_grad_norm": 0.5, "lr": 1.0}
            base = dataclasses.replace(base, **small)
        for seed in range(1 if args.fast else args.seeds):
            seeded = dataclasses.replace(base, seed=seed, split_seed=seed, insecure_noise_seed=seed)
            yield from study(args, seeded)


def study(args: argparse.Namespace, base: FederateConfig) -> Iterator[Cell]:
    if "iid" in args.studies:
        for sigma in SIGMAS[-1:] if args.fast else SIGMAS:
            for method in IID:
                yield Cell("iid", method, dataclasses.replace(base, method=method, noise_multiplier=sigma))
    if "skew" in args.studies:
        skewed = dataclasses.replace(base, partition="one-class:0.02")
        for sigma in (0.0, 4.0):
            for method in SKEWED:
                yield Cell("skew", method, dataclasses.replace(skewed, method=method, noise_multiplier=sigma))
    if "fair" in args.studies:
        unlike = dataclasses.replace(
            base, partition="dirichlet:0.1", holdout=0.25, participation=1.0, client_weights="size", sample_rate=0.05,
            steps_per_round=1, rounds=base.rounds if args.fast else 300, max_grad_norm=0.1, lr=1.0,
            noise_multiplier=JOINT,
        )  # fmt: skip
        for method, settings in FAIR:
            label = " ".join([method, *(f"{key}={value:g}" for key, value in settings.items())])
            yield Cell("fair", label, dataclasses.replace(unlike, method=method, **settings))


def run(cell: Cell) -> dict[str, Any]:
    """One run on one thread, as plain values."""
    torch.set_num_threads(1)
    started = time.monotonic()
    federation = build(cell.config)
    delta = cell.config.target_delta
    history = list(
        rounds(
            federation.server,
            InProcess(federation.clients),
            validation=federation.source.test,
            heldout=federation.heldout,
            delta=delta,
        )
    )
    members = federation.server.members.values()
    known = {(m.account.sampler.name, m.account.steps): m.account for m in members}
    return {
        "study": cell.study,
        "label": cell.label,
        "data": cell.config.data,
        "sigma": cell.config.noise_multiplier,
        "epsilon": max(float(account.epsilon(delta)) for account in known.values()),
        "accuracy": history[-1]["validation/accuracy"],
        "unfairness": history[-1].get("validation/unfairness"),
        "worst": history[-1].get("validation/worst accuracy"),
        "down": history[-1]["bytes/down"] / (history[-1]["accepted"] + history[-1]["refused"]),
        "up": history[-1]["bytes/up"] / history[-1]["accepted"],
        "seconds": time.monotonic() - started,
        "history": [plain(row) for row in history],
    }


def markdown(results: list[dict[str, Any]]) -> str:
    """A table for each study and data set: mean and standard deviation over seeds."""
    lines = []
    for name, data in dict.fromkeys((one["study"], one["data"]) for one in results):
        lines += [
            f"## {name}, {data}",
            "",
            "| method | sigma | epsilon | accuracy, % | unfairness | down | up, bytes |",
        ]
        lines.append("|---" * 7 + "|")
        mine = [one for one in results if (one["study"], one["data"]) == (name, data)]
        for label, sigma in dict.fromkeys((one["label"], one["sigma"]) for one in mine):
            group = [one for one in mine if (one["label"], one["sigma"]) == (label, sigma)]
            scores = [100 * one["accuracy"] for one in group]
            spread = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
            unfair = [one["unfairness"] for one in group if one["unfairness"] is not None]
            lines.append(
                f"| {label} | {sigma:.3g} | {max(one['epsilon'] for one in group):.3f} "
                f"| {statistics.fmean(scores):.1f}{spread} | {f'{statistics.fmean(unfair):.3g}' if unfair else ''} "
                f"| {group[0]['down']:,.0f} | {group[0]['up']:,.0f} |"
            )
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=lambda text: text.split(","), default=["iid", "skew", "fair"])
    parser.add_argument("--data", type=lambda text: text.split(","), default=["mnist", "fashion-mnist"])
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--lr", type=float, default=5.0, help="local learning rate of iid and skew")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("runs/federated"))
    args = parser.parse_args()
    store = args.out / "cells"
    store.mkdir(parents=True, exist_ok=True)
    todo = list(cells(args))
    results = []
    for cell in tqdm(todo, unit="run"):
        path = store / f"{cell.key}.json"
        if not path.exists():
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(plain(run(cell))))
            partial.replace(path)
        found = json.loads(path.read_text())
        results.append(found | {"epsilon": float("inf") if found["epsilon"] is None else found["epsilon"]})
    (args.out / "federated.md").write_text(markdown(results))
    print(markdown(results))


if __name__ == "__main__":
    main()
