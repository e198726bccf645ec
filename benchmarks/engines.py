"""One optimizer step of plain SGD, of Gnomon and of Opacus, each written as its users would write it."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import gnomon
from gnomon.training.trainer import Trainer
from workloads import losses

Step = Callable[[], object]


def sgd(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Return a step of plain SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        losses(model(x), y).mean().backward()
        optimizer.step()

    return step


def _trainer(model: nn.Module, x: Tensor, noise_multiplier: float) -> Trainer:
    return gnomon.Trainer(
        model,
        losses,
        torch.optim.SGD(model.parameters(), lr=1e-3),
        sample_rate=0.01,
        expected_batch_size=len(x),
        noise_multiplier=noise_multiplier,
        target_delta=1e-6,
        steps=10**6,
        progress=False,
    )


def gnomon_step(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Return the complete step of a Trainer: updates, clipping, charge, noise and optimizer."""
    trainer = _trainer(model, x, 1.0)
    return lambda: trainer._step([(x, y)])


def gnomon_without_noise(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Return the step of a Trainer with noise multiplier 0, to separate the cost of the noise."""
    trainer = _trainer(model, x, 0.0)
    return lambda: trainer._step([(x, y)])


def _opacus(model: nn.Module, x: Tensor, y: Tensor, mode: str) -> Step:
    """Return a step of Opacus with the given `grad_sample_mode`."""
    from opacus import PrivacyEngine
    from opacus.validators import ModuleValidator

    model = ModuleValidator.fix(model)
    loader = DataLoader(TensorDataset(x, y), batch_size=len(x))
    criterion = nn.CrossEntropyLoss()
    settings = {
        "module": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-3),
        "data_loader": loader,
        "noise_multiplier": 1.0,
        "max_grad_norm": 1.0,
        "poisson_sampling": False,
        "grad_sample_mode": mode,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if mode == "ghost":
            private, optimizer, criterion, _ = PrivacyEngine().make_private(criterion=criterion, **settings)
        else:
            private, optimizer, _ = PrivacyEngine().make_private(**settings)

    def step() -> None:
        optimizer.zero_grad()
        outputs = private(x)
        if outputs.dim() == 3 and mode == "ghost":
            loss = criterion(outputs.flatten(0, 1), y.flatten(), shape=outputs.shape)
        elif outputs.dim() == 3:
            loss = losses(outputs, y).mean()
        else:
            loss = criterion(outputs, y)
        loss.backward()
        optimizer.step()

    return step


def opacus_hooks(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    return _opacus(model, x, y, "hooks")


def opacus_ghost(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    return _opacus(model, x, y, "ghost")


ENGINES: dict[str, Callable[[nn.Module, Tensor, Tensor], Step]] = {
    "plain SGD": sgd,
    "Gnomon": gnomon_step,
    "Gnomon, no noise": gnomon_without_noise,
    "Opacus hooks": opacus_hooks,
    "Opacus ghost": opacus_ghost,
}
