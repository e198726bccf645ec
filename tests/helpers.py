"""The data, the model, the loss and the Trainer that tests share."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gnomon import Trainer

ROOT = Path(__file__).parents[1]
"""The folder of the repository."""


def benchmark(name: str) -> ModuleType:
    """Import a module of the folder `benchmarks`, also if a library has installed a package of that name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        return importlib.import_module(name)


LOSS = nn.CrossEntropyLoss(reduction="none")
"""The loss of each sample."""


def data(count: int = 60, seed: int = 0, features: int = 4) -> tuple[Tensor, Tensor]:
    """Return normal inputs, and the sign of the first feature as label."""
    inputs = torch.randn(count, features, generator=torch.Generator().manual_seed(seed))
    return inputs, (inputs[:, 0] > 0).long()


def model(seed: int = 0) -> nn.Sequential:
    """Return a network of four features and three classes; torch's global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def trainer(model: nn.Module | None = None, *, seed: int | None = 1, lr: float = 1.0, **settings: Any) -> Trainer:
    """Return a Trainer for `data()` with few steps.

    Args:
        model: the model (default: a linear classifier of four features and two classes).
        seed: seed of torch's global generator, set before the default model is created; None leaves it alone.
        lr: learning rate of the default optimizer, SGD.
        settings: settings of the Trainer, in place of the defaults.
    """
    if seed is not None:
        torch.manual_seed(seed)
    model = nn.Linear(4, 2) if model is None else model
    defaults: dict[str, Any] = {
        "loss": LOSS,
        "expected_batch_size": 30,
        "noise_multiplier": 1.0,
        "target_delta": 1e-3,
        "steps": 4,
        "progress": False,
    }
    if "sampler" not in settings:
        defaults["sample_rate"] = 0.5
    if "optimizer" not in settings:
        defaults["optimizer"] = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr)
    return Trainer(model, **(defaults | settings))


def draws_after_fork(source: Any) -> tuple[Tensor, Tensor]:
    """Return the next 16 normals that a forked child and its parent draw from a source that both have."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(send, source.normal(16).numpy().tobytes())
        finally:
            os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as stream:
        drawn = torch.frombuffer(bytearray(stream.read()), dtype=torch.float64)
    os.waitpid(child, 0)
    return drawn, source.normal(16)
