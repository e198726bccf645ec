"""Compare federated methods: IID clients at several noise levels, fairness, and extreme skew with and without noise.

    python experiments/federated.py [--studies iid,fair,skew] [--data mnist,fashion-mnist] [--seeds 3] [--workers 2]
                                    [--cells 'iid/fedavg@4,...'] [--pfa] [--out DIR] [--tables] [--fast]

Settings are those of the papers where the papers state them, and the closest interpretation where they do not. All
methods of a study have the same clients, steps, clip bound and noise multiplier, and therefore the same epsilon. The
script runs one seed after the other and stores every finished run, so that a stopped study continues when it is started
again. `--tables` runs nothing and writes the tables and figures of the finished runs. `--fast` runs all studies on the
digits data set for a few rounds, as a test of the script; its numbers mean nothing.
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
from gnomon.federated.builders import build_federation
from gnomon.federated.rounds import InProcess, run_rounds
from gnomon.memory import keep_memory
from gnomon.runs.federate_config import FederateConfig
from gnomon.runs.train import plain
from gnomon.studies.cells import CellsFailed, run_cells, settings_key, stored_cells

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
"""The noise multiplier of the fairness study. FedFDP releases updates with noise 2 and losses with noise 5 from one
batch; the other methods get the joint noise multiplier, so that all methods have the same epsilon."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run of a study."""

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
    """Return all selected runs, seed by seed, so that a stopped study has complete tables for its first seeds."""
    selected = []
    for seed in range(1 if args.fast else args.seeds):
        for study in [*args.studies, *(["pfa"] if args.pfa else [])]:
            for data in ["digits"] if args.fast else args.data:
                selected += STUDIES[study](base(args, data, seed))
    return [cell for cell in selected if any(fnmatchcase(cell.name, pattern) for pattern in args.cells)]


def base(args: argparse.Namespace, data: str, seed: int) -> FederateConfig:
    """Return the common settings: ten clients with 5,000 records each and 80 rounds of five steps with batches of 250.

    The epsilons that the FedPCDP paper states agree with these settings.
    """
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
    """Return the settings of a method at a noise level.

    The paper does not state the update limit of FedLRS. Here it is the largest update that a round without noise can
    reach.
    """
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
    """Return the runs of PFA, a further line of the IID table that the paper does not have."""
    for sigma in SIGMAS:
        yield Cell("iid", "pfa", named(config, "pfa", sigma))


def skew(config: FederateConfig) -> Iterator[Cell]:
    """Return the runs of the study in which each client has almost only one class."""
    config = dataclasses.replace(config, partition="one-class:0.02")
    for sigma in (4.0, 0.0):
        for method in SKEWED:
            yield Cell("skew", method, named(config, method, sigma))


def fair(config: FederateConfig) -> Iterator[Cell]:
    """Return the runs of the fairness study, with FedFDP's settings.

    Clients are drawn from Dirichlet 0.1, and every client takes one step per round at sampling rate 0.05.
    """
    config = dataclasses.replace(
        config, partition="dirichlet:0.1", holdout=0.25, participation=1.0, client_weights="size", sample_rate=0.05,
        steps_per_round=1, rounds=config.rounds if config.rounds < 80 else 300, max_grad_norm=0.1, lr=1.0,
    )  # fmt: skip
    for label, (method, settings) in FAIR.items():
        yield Cell("fair", label, dataclasses.replace(named(config, method, JOINT), **settings))


STUDIES = {"iid": iid, "skew": skew, "fair": fair, "pfa": pfa}


def run(cell: Cell) -> dict[str, Any]:
    """Run one cell on one thread and return its result as plain values."""
    torch.set_num_threads(1)
    keep_memory()
    started = time.monotonic()
    federation = build_federation(cell.config)
    delta = cell.config.target_delta
    history = list(
        run_rounds(
            federation.server,
            InProcess(federation.clients),
            validation=federation.source.test,
            heldout=federation.heldout,
            delta=delta,
            every=max(1, cell.config.rounds // 10),
        )
    )
    accounts = {}
    for profile in sorted(federation.server.profiles.values(), key=lambda profile: profile.account.steps):
        accounts[profile.account.sampler.name] = profile.account  # the account with the most steps stays
    last = history[-1]
    participants = last["accepted"] + last["refused"]
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
            "down": last["bytes/down"] / participants,
            "first down": history[0]["bytes/down"] / participants,
            "up": last["bytes/up"] / last["accepted"],
            "rounds": cell.config.rounds,
            "seconds": time.monotonic() - started,
            "history": [plain(row) for row in history],
        }
    )


def split(text: str) -> list[str]:
    return text.split(",")


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line, or the given words."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=split, default=["iid", "fair", "skew"])
    parser.add_argument("--data", type=split, default=["mnist", "fashion-mnist"])
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--lr", type=float, default=20.0, help="local learning rate of iid and skew (default: 20)")
    parser.add_argument("--rounds", type=int, default=80, help="number of rounds; fewer than 80 only as a test")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cells", type=split, default=["*"], help="run only cells that match STUDY/METHOD@SIGMA")
    parser.add_argument("--pfa", action="store_true", help="add PFA as the last line of the IID table")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes, with one thread each")
    parser.add_argument("--fast", action="store_true", help="test the script on the digits data set in a few rounds")
    parser.add_argument("--tables", action="store_true", help="run nothing; write the tables of the finished runs")
    parser.add_argument("--out", type=Path, default=Path("runs/federated"))
    args = parser.parse_args(words)
    unknown = [name for name in args.studies if name not in STUDIES]
    if unknown:
        parser.error(f"--studies {unknown[0]} is unknown; expected {', '.join(STUDIES)}")
    if not cells(args):
        parser.error(f"--cells {','.join(args.cells)} matches no run; names look like iid/fedavg@4")
    return args


def main() -> None:
    args = arguments()
    selected, failures = cells(args), []
    if not args.tables:
        for seed in dict.fromkeys(cell.config.seed for cell in selected):
            try:
                run_cells([cell for cell in selected if cell.config.seed == seed], args.out, run, workers=args.workers)
            except CellsFailed as error:
                failures.append(str(error))
            federated_tables.write([result for _, result in stored_cells(selected, args.out)], args.out)
    print(federated_tables.write([result for _, result in stored_cells(selected, args.out)], args.out))
    if failures:
        raise SystemExit("\n".join(failures))


if __name__ == "__main__":
    main()
