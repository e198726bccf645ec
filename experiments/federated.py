"""Federated methods side by side: IID over noise levels, fairness, and extreme skew with and without noise.

    python experiments/federated.py [--studies iid,fair,skew] [--data mnist,fashion-mnist] [--seeds 3] [--workers 2]
                                    [--cells 'iid/fedavg@4,...'] [--pfa] [--out DIR] [--tables] [--fast]

Settings are those of the papers where they are printed, and the nearest reading where they are not. Every method of a
study has the same clients, steps, bound and noise multiplier, so the same epsilon. Runs go seed by seed and are kept:
start it again to go on; `--tables` runs nothing and writes tables and pictures of what is there. `--fast` runs
everything on the digits in a few rounds, to see that it works; its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import federated_tables
import torch

from gnomon.clipping import UpdateAndLoss
from gnomon.federated.rounds import InProcess, rounds
from gnomon.federated.simulation.setup import build
from gnomon.memory import keep_memory
from gnomon.runs.federate_config import FederateConfig
from gnomon.runs.train import plain
from gnomon.studies.cells import CellsFailed, kept_cells, run_cells, settings_key

IID = ("fedavg", "fedprox", "fedlrs", "fedpdp", "fedpcdp")
SKEWED = ("fedavg", "scaffold", "fedprox", "moon", "fedlrs", "pfa", "fedpdp", "fedpcdp")
FAIR: dict[str, tuple[str, dict[str, float]]] = {
    "fedavg": ("fedavg", {}),
    "q-ffl q=1": ("q-ffl", {"fairness_exponent": 1.0}),
    "fedfdp fair=0.01": ("fedfdp", {"fairness_lambda": 0.01}),
    "fedfdp fair=0.1": ("fedfdp", {"fairness_lambda": 0.1}),
}
"""Lines of the fairness study: method and settings by label."""
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
    def name(self) -> str:
        return f"{self.study}/{self.label}@{self.config.noise_multiplier:g}"

    @property
    def key(self) -> str:
        return settings_key(self.config, study=self.study)


def cells(args: argparse.Namespace) -> list[Cell]:
    """Everything that was asked for, seed by seed, so that a stopped study has whole tables of its first seeds."""
    found = []
    for seed in range(1 if args.fast else args.seeds):
        for study in [*args.studies, *(["pfa"] if args.pfa else [])]:
            for data in ["digits"] if args.fast else args.data:
                found += STUDIES[study](base(args, data, seed))
    return [cell for cell in found if any(fnmatchcase(cell.name, pattern) for pattern in args.cells)]


def base(args: argparse.Namespace, data: str, seed: int) -> FederateConfig:
    """Ten clients with 5,000 records each, 80 rounds of five steps with batches of 250 (FedPCDP's epsilons fit it)."""
    config = FederateConfig(
        data=data, data_dir=args.data_dir, private_records=50_000, public_records=100, clients=10, rounds=args.rounds,
        participation=0.8, steps_per_round=5, batch_size=250, max_grad_norm=0.01, lr=args.lr, rank=100,
        seed=seed, split_seed=seed, insecure_noise_seed=seed,
    )  # fmt: skip
    if args.fast:
        small = {"private_records": None, "rounds": 3, "batch_size": 32, "max_grad_norm": 0.5, "lr": 1.0}
        config = dataclasses.replace(config, **small)
    return config


def named(config: FederateConfig, method: str, sigma: float) -> FederateConfig:
    """A method at a noise level. FedLRS's pull begins where a round without noise could end; that is not printed."""
    config = dataclasses.replace(config, method=method, noise_multiplier=sigma)
    if method != "fedlrs":
        return config
    reach = config.steps_per_round * config.lr * config.max_grad_norm
    return dataclasses.replace(config, proximal_mu=min(0.1, 0.5 / config.lr), update_limit=reach)


def iid(config: FederateConfig) -> Iterator[Cell]:
    for sigma in SIGMAS:
        for method in IID:
            yield Cell("iid", method, named(config, method, sigma))


def pfa(config: FederateConfig) -> Iterator[Cell]:
    """One more line of the IID table, which the paper does not have."""
    for sigma in SIGMAS:
        yield Cell("iid", "pfa", named(config, "pfa", sigma))


def skew(config: FederateConfig) -> Iterator[Cell]:
    """Almost one class a client."""
    config = dataclasses.replace(config, partition="one-class:0.02")
    for sigma in (4.0, 0.0):
        for method in SKEWED:
            yield Cell("skew", method, named(config, method, sigma))


def fair(config: FederateConfig) -> Iterator[Cell]:
    """FedFDP's setting: Dirichlet 0.1, everybody takes one step a round at q = 0.05."""
    config = dataclasses.replace(
        config, partition="dirichlet:0.1", holdout=0.25, participation=1.0, client_weights="size", sample_rate=0.05,
        steps_per_round=1, rounds=config.rounds if config.rounds < 80 else 300, max_grad_norm=0.1, lr=1.0,
    )  # fmt: skip
    for label, (method, settings) in FAIR.items():
        yield Cell("fair", label, dataclasses.replace(named(config, method, JOINT), **settings))


STUDIES = {"iid": iid, "skew": skew, "fair": fair, "pfa": pfa}


def run(cell: Cell) -> dict[str, Any]:
    """One run on one thread, as plain values."""
    torch.set_num_threads(1)
    keep_memory()
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
            every=max(1, cell.config.rounds // 10),
        )
    )
    accounts = {}
    for member in sorted(federation.server.members.values(), key=lambda member: member.account.steps):
        accounts[member.account.sampler.name] = member.account  # the one with the most steps stays
    last = history[-1]
    asked = last["accepted"] + last["refused"]
    return plain(
        {
            "study": cell.study,
            "label": cell.label,
            "data": cell.config.data,
            "sigma": cell.config.noise_multiplier,
            "epsilon": max(float(account.epsilon(delta)) for account in accounts.values()),
            "accuracy": last["validation/accuracy"],
            "unfairness": last.get("validation/unfairness"),
            "worst": last.get("validation/worst accuracy"),
            "down": last["bytes/down"] / asked,
            "first down": history[0]["bytes/down"] / asked,
            "up": last["bytes/up"] / last["accepted"],
            "rounds": cell.config.rounds,
            "seconds": time.monotonic() - started,
            "history": [plain(row) for row in history],
        }
    )


def split(text: str) -> list[str]:
    return text.split(",")


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """What was asked for on the command line, or by `words`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=split, default=["iid", "fair", "skew"])
    parser.add_argument("--data", type=split, default=["mnist", "fashion-mnist"])
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--lr", type=float, default=20.0, help="local learning rate of iid and skew (default: 20)")
    parser.add_argument("--rounds", type=int, default=80, help="fewer only to see that it works")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cells", type=split, default=["*"], help="only STUDY/METHOD@SIGMA that match, * is anything")
    parser.add_argument("--pfa", action="store_true", help="also PFA in the IID table, last")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes, one thread each")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--tables", action="store_true", help="run nothing; write tables of what is there")
    parser.add_argument("--out", type=Path, default=Path("runs/federated"))
    args = parser.parse_args(words)
    unknown = [name for name in args.studies if name not in STUDIES]
    if unknown:
        parser.error(f"--studies {unknown[0]}: one of {', '.join(STUDIES)}")
    if not cells(args):
        parser.error(f"--cells {','.join(args.cells)}: no run matches; names are as iid/fedavg@4")
    return args


def main() -> None:
    args = arguments()
    every, failures = cells(args), []
    if not args.tables:
        for seed in dict.fromkeys(cell.config.seed for cell in every):
            try:
                run_cells([cell for cell in every if cell.config.seed == seed], args.out, run, workers=args.workers)
            except CellsFailed as error:
                failures.append(str(error))
            federated_tables.write([found for _, found in kept_cells(every, args.out)], args.out)
    print(federated_tables.write([found for _, found in kept_cells(every, args.out)], args.out))
    if failures:
        raise SystemExit("\n".join(failures))


if __name__ == "__main__":
    main()
