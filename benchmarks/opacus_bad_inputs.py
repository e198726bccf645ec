"""The behaviour of Opacus on bad input, one line for each case of the table in docs/robustness.md.

python benchmarks/opacus_bad_inputs.py
"""

from __future__ import annotations

import inspect
import math
import resource
import signal
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import opacus
import torch
from opacus import PrivacyEngine
from opacus.accountants import RDPAccountant
from opacus.accountants.utils import get_noise_multiplier
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

TIME_LIMIT = 90
"""Seconds after which a case is stopped."""


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(64, 12, generator=generator), torch.randint(0, 4, (64,), generator=generator)


X, Y = data()


def with_bad_pixel(value: float) -> Tensor:
    """Return the inputs with one feature replaced."""
    x = X.clone()
    x[5, 3] = value
    return x


def train(
    x: Tensor = X, y: Tensor = Y, *, model: nn.Module | None = None, delta: float = 1e-5, batch: int = 16,
    steps: int = 3, accountant: str = "prv", own: bool = False, mode: str = "hooks", **settings,
) -> str:  # fmt: skip
    """Train for a few steps; return the number of non-finite parameters and the reported epsilon."""
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(12, 15), nn.Tanh(), nn.Linear(15, 4))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    engine, criterion = PrivacyEngine(accountant=accountant), nn.CrossEntropyLoss()
    wrapped = engine.make_private(
        module=model, optimizer=optimizer, data_loader=DataLoader(TensorDataset(x, y), batch_size=batch),
        criterion=criterion, grad_sample_mode=mode, **({"noise_multiplier": 1.0, "max_grad_norm": 1.0} | settings),
    )  # fmt: skip
    if mode == "ghost":
        model, optimizer, criterion, loader = wrapped
    else:
        model, optimizer, loader = wrapped
    done = 0
    while done < steps:
        for inputs, targets in [(x, y)] if own else loader:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()
            done += 1
            if done == steps:
                break
    weights = torch.cat([p.flatten() for p in model.parameters()])
    non_finite = int((~torch.isfinite(weights)).sum())
    return f"{non_finite}/{weights.numel()} parameters not finite, epsilon {engine.get_epsilon(delta):.3f} reported"


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(12, 4), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 4)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x)))


def norms(reduction: str) -> str:
    """Return the mean of the per-sample gradient norms that are clipped; Opacus expects a mean loss."""
    torch.manual_seed(0)
    model = nn.Linear(12, 4)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(X, Y), batch_size=64), noise_multiplier=1.0, max_grad_norm=1.0,
        poisson_sampling=False,
    )  # fmt: skip
    inputs, targets = next(iter(loader))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), targets, reduction=reduction).backward()
    sample_norms = torch.stack([p.grad_sample.flatten(1).norm(dim=1) for p in model.parameters()]).norm(dim=0)
    return f"mean per-sample norm {float(sample_norms.mean()):.3f}"


def calibrated(value: float) -> str:
    """Return the noise multiplier for a target epsilon."""
    sigma = get_noise_multiplier(target_epsilon=value, target_delta=1e-5, sample_rate=0.25, steps=100)
    return f"noise multiplier {sigma:.4g}"


def little_memory() -> str:
    """Train with very little noise under a memory limit of 6 GiB."""
    resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, resource.RLIM_INFINITY))
    return train(noise_multiplier=1e-3)


def edited() -> str:
    """Restore an accountant from a state whose history was edited."""
    accountant, restored = RDPAccountant(), RDPAccountant()
    accountant.history = [(1.0, 0.25, 100)]
    restored.load_state_dict(accountant.state_dict() | {"history": [(1.0, 0.25, 1)]})
    return f"accepted: epsilon {accountant.get_epsilon(1e-5):.3f} became {restored.get_epsilon(1e-5):.3f}"


def truncated() -> str:
    """Load a truncated checkpoint."""
    model = nn.Linear(12, 4)
    engine = PrivacyEngine()
    model, optimizer, _ = engine.make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(X, Y), batch_size=16), noise_multiplier=1.0, max_grad_norm=1.0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        engine.save_checkpoint(path=path, module=model, optimizer=optimizer)
        path.write_bytes(path.read_bytes()[:-200])
        engine.load_checkpoint(path=path, module=model, optimizer=optimizer)
    return "accepted"


def source() -> str:
    """Inspect the source of the checkpoint functions."""
    text = inspect.getsource(PrivacyEngine.save_checkpoint) + inspect.getsource(PrivacyEngine.load_checkpoint)
    return (
        f"weights_only=False: {'weights_only=False' in text}, fsync or rename: {'fsync' in text or 'replace' in text}"
    )


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(12, 8), nn.Linear(8, 4))
    model[0].requires_grad_(False)
    return model


def cases() -> dict[str, Callable[[], str]]:
    """Return all cases by name."""
    table: dict[str, Callable[[], str]] = {}
    for value in (math.nan, math.inf, 1e30):
        for mode in ("hooks", "ghost"):
            table[f"pixel {value}, {mode}"] = lambda v=value, m=mode: train(with_bad_pixel(v), batch=64, mode=m)
    wrong = Y.clone()
    wrong[3] = 9
    table |= {
        "label out of range": lambda: train(y=wrong, batch=64),
        "empty batches": lambda: train(batch=1, steps=64),
        "empty data set": lambda: train(X[:0], Y[:0]),
        "one class": lambda: train(y=Y * 0),
        "wrong shape": lambda: train(X[:, :5]),
        "targets missing": lambda: train(y=Y[:10]),
        "unused": lambda: train(model=Unused()),
        "tied, hooks": lambda: train(model=Tied()),
        "tied, ghost": lambda: train(model=Tied(), mode="ghost"),
        "frozen": lambda: train(model=frozen()),
        "loss mean": lambda: norms("mean"),
        "loss sum": lambda: norms("sum"),
        "own batches": lambda: train(own=True),
        "poisson_sampling=False": lambda: train(poisson_sampling=False),
    }
    for delta in (0.0, 0.5, 1 / 64, 1.0):
        table[f"delta {delta:g}"] = lambda d=delta: train(delta=d)
    for sigma in (0.0, -1.0, math.nan):
        for accountant in ("prv", "rdp"):
            table[f"sigma {sigma}, {accountant}"] = lambda s=sigma, a=accountant: train(
                noise_multiplier=s, accountant=a
            )
    for bound in (0.0, math.inf):
        table[f"C {bound}"] = lambda c=bound: train(max_grad_norm=c)
    for epsilon in (math.nan, 1e-3, 1e4):
        table[f"target epsilon {epsilon}"] = lambda e=epsilon: calibrated(e)
    return table | {"edited state": edited, "truncated checkpoint": truncated, "checkpoint source": source,
                    "sigma 1e-3, 6 GiB": little_memory}  # fmt: skip


def main() -> None:
    warnings.simplefilter("ignore")
    print(f"opacus {opacus.__version__}, torch {torch.__version__}")

    def stop(*_: object) -> None:
        raise TimeoutError(f"no result within {TIME_LIMIT} s")

    signal.signal(signal.SIGALRM, stop)
    for name, case in cases().items():
        started = time.monotonic()
        signal.alarm(TIME_LIMIT)
        try:
            result = case()
        except Exception as error:
            result = f"{type(error).__name__}: {str(error)[:120]}"
        signal.alarm(0)
        print(f"{name:28} {result}  ({time.monotonic() - started:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
