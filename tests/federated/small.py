"""A federation that is small enough to check by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from gnomon import Trainer
from gnomon.accounting import Account, Poisson
from gnomon.data import Records
from gnomon.federated import Client, ClientProfile, Server, Strategy, UpdateBounds
from gnomon.federated.rounds import InProcess, run_round
from gnomon.release import SeededNoise
from tests.helpers import LOSS, model

QUICK = {"noise_multiplier": 3.0, "rounds": 2, "clients": 3, "steps_per_round": 1, "accountant": "rdp"}
"""Settings of a federated run that takes a second."""
PUBLIC = (
    torch.randn(12, 4, generator=torch.Generator().manual_seed(99)),
    torch.arange(12) % 3,
)


def data(seed: int, n: int = 30) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=generator)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 1).long()


def federation(
    strategy: Strategy,
    clients: int = 3,
    *,
    rounds: int = 4,
    steps: int = 2,
    sigma: float = 1.0,
    rate: float = 0.5,
    bound: float = 0.5,
    lr: float = 0.5,
    **settings: Any,
) -> tuple[Server, dict[str, Client]]:
    profiles, made = {}, {}
    for number in range(clients):
        name = f"c{number}"
        joint = strategy.joint_bound(bound)
        bounds = UpdateBounds(joint, sigma, 30 * rate, steps, lr, step_factor=strategy.step_factor)
        profiles[name] = ClientProfile(1.0, Account(Poisson(rate), sigma), bounds)
        own = model()
        trainer = Trainer(
            own, LOSS, torch.optim.SGD(own.parameters(), lr=lr), method=strategy.method, max_grad_norm=joint,
            sample_rate=rate, expected_batch_size=30 * rate, noise_multiplier=sigma, target_delta=1e-3,
            steps=rounds * steps, noise=SeededNoise(number), progress=False,
        )  # fmt: skip
        made[name] = Client(name, trainer, data(number), strategy, steps=steps, max_grad_norm=bound)
    return Server(model(), LOSS, strategy, profiles, rounds=rounds, **settings), made


def run(server: Server, clients: dict[str, Client], rounds: int | None = None) -> list[Any]:
    count = server.rounds - server.round if rounds is None else rounds
    return [run_round(server, InProcess(clients), lambda number, names: None) for _ in range(count)]


def store(path: Path, records: Records, test: Records) -> str:
    """Write records and test records of ten classes to a file, and return the name of the data source."""
    np.savez(path, classes=10, x_train=records.inputs, y_train=records.targets, x_test=test.inputs, y_test=test.targets)
    return f"npz:{path}"


def flat(weights: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in weights.values()])
