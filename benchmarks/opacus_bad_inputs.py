"""What Opacus does with bad input: one line for each case, for the table in docs/robustness.md.

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

PATIENCE = 90


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(64, 12, generator=generator), torch.randint(0, 4, (64,), generator=generator)


X, Y = data()


def spoilt(value: float) -> Tensor:
    x = X.clone()
    x[5, 3] = value
    return x


def train(
    x: Tensor = X, y: Tensor = Y, *, model: nn.Module | None = None, delta: float = 1e-5, batch: int = 16,
    steps: int = 3, accountant: str = "prv", own: bool = False, mode: str = "hooks", **settings,
) -> str:  # fmt: skip
    """A few steps; how many parameters are not finite, and what epsilon is reported."""
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(12, 15), nn.Tanh(), nn.Linear(15, 4))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    engine, criterion = PrivacyEngine(accountant=accountant), nn.CrossEntropyLoss()
    made = engine.make_private(
        module=model, optimizer=optimizer, data_loader=DataLoader(TensorDataset(x, y), batch_size=batch),
        criterion=criterion, grad_sample_mode=mode, **({"noise_multiplier": 1.0, "max_grad_norm": 1.0} | settings),
    )  # fmt: skip
    if mode == "ghost":
        model, optimizer, criterion, loader = made
    else:
        model, optimizer, loader = made
    taken = 0
    while taken < steps:
        for inputs, targets in [(x, y)] if own else loader:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()
            taken += 1
            if taken == steps:
                break
    weights = torch.cat([p.flatten() for p in model.parameters()])
    bad = int((~torch.isfinite(weights)).sum())
    return f"{bad}/{weights.numel()} parameters not finite, epsilon {engine.get_epsilon(delta):.3f} reported"


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
    """The per-sample gradient norms that clipping sees, where the engine expects a mean."""
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
    each = torch.stack([p.grad_sample.flatten(1).norm(dim=1) for p in model.parameters()]).norm(dim=0)
    return f"mean per-sample norm {float(each.mean()):.3f}"


def target(value: float) -> str:
    sigma = get_noise_multiplier(target_epsilon=value, target_delta=1e-5, sample_rate=0.25, steps=100)
    return f"noise multiplier {sigma:.4g}"


def little_memory() -> str:
    resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, resource.RLIM_INFINITY))
    return train(noise_multiplier=1e-3)


def edited() -> str:
    one, two = RDPAccountant(), RDPAccountant()
    one.history = [(1.0, 0.25, 100)]
    two.load_state_dict(one.state_dict() | {"history": [(1.0, 0.25, 1)]})
    return f"accepted: epsilon {one.get_epsilon(1e-5):.3f} became {two.get_epsilon(1e-5):.3f}"


def truncated() -> str:
    model = nn.Linear(12, 4)
    engine = PrivacyEngine()
    model, optimizer, _ = engine.make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(X, Y), batch_size=16), noise_multiplier=1.0, max_grad_norm=1.0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "checkpoint"
        engine.save_checkpoint(path=path, module=model, optimizer=optimizer)
        path.write_bytes(path.read_bytes()[:-200])
        engine.load_checkpoint(path=path, module=model, optimizer=optimizer)
    return "accepted"


def source() -> str:
    text = inspect.getsource(PrivacyEngine.save_checkpoint) + inspect.getsource(PrivacyEngine.load_checkpoint)
    return (
        f"weights_only=False: {'weights_only=False' in text}, fsync or rename: {'fsync' in text or 'replace' in text}"
    )


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(12, 8), nn.Linear(8, 4))
    model[0].requires_grad_(False)
    return model


def cases() -> dict[str, Callable[[], str]]:
    found: dict[str, Callable[[], str]] = {}
    for value in (math.nan, math.inf, 1e30):
        for mode in ("hooks", "ghost"):
            found[f"pixel {value}, {mode}"] = lambda v=value, m=mode: train(spoilt(v), batch=64, mode=m)
    wrong = Y.clone()
    wrong[3] = 9
    found |= {
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
        found[f"delta {delta:g}"] = lambda d=delta: train(delta=d)
    for sigma in (0.0, -1.0, math.nan):
        for accountant in ("prv", "rdp"):
            found[f"sigma {sigma}, {accountant}"] = lambda s=sigma, a=accountant: train(
                noise_multiplier=s, accountant=a
            )
    for bound in (0.0, math.inf):
        found[f"C {bound}"] = lambda c=bound: train(max_grad_norm=c)
    for epsilon in (math.nan, 1e-3, 1e4):
        found[f"target epsilon {epsilon}"] = lambda e=epsilon: target(e)
    return found | {"edited state": edited, "truncated checkpoint": truncated, "checkpoint source": source,
                    "sigma 1e-3, 6 GiB": little_memory}  # fmt: skip


def main() -> None:
    warnings.simplefilter("ignore")
    print(f"opacus {opacus.__version__}, torch {torch.__version__}")

    def late(*_: object) -> None:
        raise TimeoutError(f"no answer in {PATIENCE} s")

    signal.signal(signal.SIGALRM, late)
    for name, case in cases().items():
        began = time.monotonic()
        signal.alarm(PATIENCE)
        try:
            said = case()
        except Exception as error:
            said = f"{type(error).__name__}: {str(error)[:120]}"
        signal.alarm(0)
        print(f"{name:28} {said}  ({time.monotonic() - began:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
