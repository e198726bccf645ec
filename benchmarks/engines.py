"""One training step of plain SGD, Gnomon and its peers on a row, each written as its users would write it."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import DataLoader, TensorDataset

import gnomon
from measure import Cannot, Step
from workloads import Batch, DpLsgd, DpSgd, LanguageModel, Pcdp, Row, losses

CLIP = 0.1
"""The clip bound: small enough that every gradient is clipped, so that `refuse_wrong_steps` sees wrong norms."""

ONLY_DP_SGD = "offers DP-SGD only"
"""Why a peer has no number in the rows of other methods."""

LARGEST_MATRIX = 2 * 2**30
"""The largest matrix of per-sample gradients, in bytes, that the engine with dense matrices may form."""


@dataclass(frozen=True)
class Settings:
    """Settings of the optimizer and the noise."""

    lr: float = 1e-3
    noise_multiplier: float = 1.0


@dataclass(frozen=True)
class Training:
    """A model under training by one engine."""

    model: nn.Module
    """The trained model; an engine may have replaced modules."""
    step: Callable[[Tensor, Tensor], object]
    """Takes one step on a batch."""
    fit: Callable[[Batch, int], object] | None = None
    """Takes the given number of steps on a data set, for engines that draw batches themselves."""


def same(model: nn.Module) -> nn.Module:
    """Return the model as it is."""
    return model


@dataclass(frozen=True)
class Engine:
    """One column of the table."""

    name: str
    build: Callable[[Row, nn.Module, Settings], Training]
    colour: str
    methods: tuple[type, ...] = (DpSgd,)
    """The methods that the engine offers."""
    settings: Settings = Settings()
    private: bool = True
    needs: tuple[str, ...] = ()
    """The modules to import, which are not part of the measured memory."""
    adapt: Callable[[nn.Module], nn.Module] = same
    """Changes the model as the engine requires of its users."""


def parts(row: Row, x: Tensor, y: Tensor) -> list[Batch]:
    """Return a batch in parts of the physical batch size of the row."""
    size = row.max_physical_batch_size or len(x)
    return list(zip(x.split(size), y.split(size), strict=True))


# -- plain SGD ---------------------------------------------------------------------------------------


def plain_sgd(row: Row, model: nn.Module, settings: Settings) -> Training:
    """Train with plain SGD. Parts of a batch are accumulated."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=settings.lr)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        for inputs, targets in parts(row, x, y):
            (losses(model(inputs), targets).sum() / len(x)).backward()
        optimizer.step()

    return Training(model, step)


# -- Gnomon ------------------------------------------------------------------------------------------


def with_gnomon(row: Row, model: nn.Module, settings: Settings) -> Training:
    """Train with the Trainer: updates, clipping, charge, noise and optimizer."""

    def trainer(steps: int = 10**6, records: int | None = None) -> gnomon.Trainer:
        return gnomon.Trainer(
            model,
            losses,
            torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=settings.lr),
            method=row.method.build(row.records),
            max_grad_norm=CLIP,
            sample_rate=row.batch / records if records else 0.01,
            expected_batch_size=row.batch,
            noise_multiplier=settings.noise_multiplier,
            target_delta=1e-6,
            steps=steps,
            max_physical_batch_size=row.max_physical_batch_size,
            progress=False,
        )

    def fit(data: Batch, steps: int) -> None:
        trainer(steps, len(data[0])).fit(data)

    one = trainer()

    def step(x: Tensor, y: Tensor) -> None:
        one.sampling.pending += 1  # as if `batches` had drawn the batch, whose size would then vary
        one.step(x, y)

    return Training(model, step, fit)


# -- Opacus ------------------------------------------------------------------------------------------


def with_positions(model: nn.Module) -> nn.Module:
    """Give each record its own position indices, from which Opacus and FastDP read the batch size."""
    for module in model.modules():
        if isinstance(module, LanguageModel):
            module.explicit_positions = True
    return model


def for_opacus(model: nn.Module) -> nn.Module:
    """Return the model with the modules replaced that Opacus does not support, such as attention."""
    from opacus.validators import ModuleValidator

    fixed: nn.Module = ModuleValidator.fix(with_positions(model))
    return fixed


def with_opacus(mode: str, row: Row, model: nn.Module, settings: Settings) -> Training:
    """Train with Opacus in the given `grad_sample_mode`."""
    from opacus import PrivacyEngine

    criterion = nn.CrossEntropyLoss()
    arguments: dict[str, Any] = {
        "module": model,
        "optimizer": torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=settings.lr),
        "data_loader": DataLoader(TensorDataset(torch.zeros(row.batch, 1)), batch_size=row.batch),
        "noise_multiplier": settings.noise_multiplier,
        "max_grad_norm": CLIP,
        "poisson_sampling": False,
        "grad_sample_mode": mode,
    }
    if mode == "ghost":
        private, optimizer, criterion, _ = PrivacyEngine().make_private(criterion=criterion, **arguments)
    else:
        private, optimizer, _ = PrivacyEngine().make_private(**arguments)

    def loss(outputs: Tensor, targets: Tensor) -> Any:
        if outputs.dim() == 3 and mode == "ghost":
            return criterion(outputs.flatten(0, 1), targets.flatten(), shape=outputs.shape)
        return losses(outputs, targets).mean() if outputs.dim() == 3 else criterion(outputs, targets)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        batches = parts(row, x, y)
        for number, (inputs, targets) in enumerate(batches, 1):
            if len(batches) > 1:
                optimizer.signal_skip_step(do_skip=number < len(batches))
            loss(private(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()

    return Training(model, step)


# -- FastDP ------------------------------------------------------------------------------------------


def with_fastdp(row: Row, model: nn.Module, settings: Settings) -> Training:
    """Train with FastDP, whose checkout --fastdp puts on the path."""
    from fastDP import PrivacyEngine

    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=settings.lr)
    PrivacyEngine(
        model,
        batch_size=row.batch,
        sample_size=100 * row.batch,
        epochs=1,
        noise_multiplier=settings.noise_multiplier,
        max_grad_norm=CLIP,
        clipping_fn="Abadi",
        clipping_mode="MixOpt",
        clipping_style="all-layer",
    ).attach(optimizer)

    def step(x: Tensor, y: Tensor) -> None:
        for inputs, targets in parts(row, x, y):
            losses(model(inputs), targets).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return Training(model, step)


# -- dense matrices ----------------------------------------------------------------------------------


def with_vmap(row: Row, model: nn.Module, settings: Settings) -> Training:
    """Train with per-sample updates by vmap in a dense matrix, as the script of a paper would do it.

    A public subspace is a dense basis from an SVD, and local steps are those of a copy of the model per sample.
    """
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    fixed = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
    shapes = [p.shape for p in parameters.values()]
    count = sum(shape.numel() for shape in shapes)
    largest = max(row.max_physical_batch_size or row.batch, getattr(row.method, "public", 0))
    if 4 * largest * count > LARGEST_MATRIX:
        raise Cannot(f"per-sample gradients would take {4 * largest * count / 2**30:.1f} GiB")

    def loss(values: dict[str, Tensor], sample: Tensor, target: Tensor) -> Tensor:
        return losses(functional_call(model, {**values, **fixed}, (sample[None],)), target[None])[0]

    def displacement(values: dict[str, Tensor], sample: Tensor, target: Tensor) -> dict[str, Tensor]:
        moved = values
        for _ in range(row.method.steps):
            gradient = grad(loss)(moved, sample, target)
            moved = {name: value - row.method.lr * gradient[name] for name, value in moved.items()}
        return {name: value - moved[name] for name, value in values.items()}

    update = displacement if isinstance(row.method, DpLsgd) else grad(loss)
    per_sample = vmap(update, in_dims=(None, 0, 0))

    def flat(x: Tensor, y: Tensor) -> Tensor:
        values = {name: p.detach() for name, p in parameters.items()}
        return torch.cat([part.flatten(1) for part in per_sample(values, x, y).values()], 1)

    public = row.records(row.method.public) if isinstance(row.method, Pcdp) else None
    basis: Tensor | None = None
    taken = 0

    def step(x: Tensor, y: Tensor) -> None:
        nonlocal basis, taken
        if public is not None and taken % row.method.every == 0:
            basis = torch.linalg.svd(flat(*public), full_matrices=False).Vh[: row.method.rank].T  # p x k
        taken += 1
        total = torch.zeros(count if basis is None else basis.shape[1])
        for inputs, targets in parts(row, x, y):
            updates = flat(inputs, targets)
            if basis is not None:
                updates = updates @ basis
            updates *= (CLIP / updates.norm(dim=1, keepdim=True)).clamp_max(1.0)
            total += updates.sum(0)
        total += settings.noise_multiplier * CLIP * torch.randn_like(total)
        released = (total if basis is None else basis @ total) / row.batch
        with torch.no_grad():
            sizes = [shape.numel() for shape in shapes]
            for p, part in zip(parameters.values(), released.split(sizes), strict=True):
                p.sub_(settings.lr * part.view(p.shape))

    return Training(model, step)


# -- all engines -------------------------------------------------------------------------------------

ALL = (DpSgd, Pcdp, DpLsgd)
PLAIN = Engine("plain SGD", plain_sgd, "#6b7785", ALL, private=False)
GNOMON = Engine("Gnomon", with_gnomon, "#1f6feb", ALL)
VMAP = Engine("vmap", with_vmap, "#7a5195", ALL)
FASTDP = Engine("FastDP", with_fastdp, "#2f9e44", needs=("fastDP",), adapt=with_positions)
ENGINES = (
    PLAIN,
    GNOMON,
    Engine("Gnomon, no noise", with_gnomon, "#9ec5fe", ALL, Settings(noise_multiplier=0.0)),
    Engine("Opacus hooks", partial(with_opacus, "hooks"), "#b5482a", needs=("opacus",), adapt=for_opacus),
    Engine("Opacus ghost", partial(with_opacus, "ghost"), "#e2a78f", needs=("opacus",), adapt=for_opacus),
    FASTDP,
    VMAP,
)
"""The engines that run in this process, in the order of the columns."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress what engines print and warn about while they are built."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _build(row: Row, engine: Engine, settings: Settings) -> Training:
    torch.manual_seed(0)
    with quiet():
        return engine.build(row, engine.adapt(row.model()), settings)


def prepare(row: Row, engine: Engine) -> Step:
    """Return the step of an engine on a fixed batch of a row.

    Raises:
        Cannot: the engine does not offer the method of the row.
    """
    _refuse_unavailable(row, engine)
    training = _build(row, engine, engine.settings)
    batch = row.records(row.batch)
    with quiet():
        return partial(training.step, *batch)


def prepare_run(row: Row, engine: Engine, steps: int) -> Step:
    """Return a run of training of a row with `run_steps`, shortened to `steps`: model, batches and steps."""
    _refuse_unavailable(row, engine)
    data = row.records(row.dataset)

    def run() -> None:
        training = _build(row, engine, engine.settings)
        if training.fit is not None:
            training.fit(data, steps)
            return
        for _ in range(steps):
            drawn = torch.rand(row.dataset) < row.batch / row.dataset
            training.step(data[0][drawn], data[1][drawn])

    return run


def load(row: Row, engine: Engine) -> None:
    """Import what a row and an engine need, by steps on a tiny model."""
    for module in (*row.needs, *engine.needs):
        importlib.import_module(module)
    tiny = replace(row, model=partial(nn.Linear, 99, 10), batch=4, max_physical_batch_size=None)
    tiny = replace(tiny, records=_tiny_records, method=DpSgd() if isinstance(row.method, DpSgd) else row.method)
    with quiet():
        prepare(tiny, engine)()


def _tiny_records(count: int) -> Batch:
    return torch.randn(count, 99), torch.randint(0, 10, (count,))


def _refuse_unavailable(row: Row, engine: Engine) -> None:
    if not isinstance(row.method, engine.methods):
        raise Cannot(ONLY_DP_SGD)
    for module in (*row.needs, *engine.needs):
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            raise Cannot(f"{module.partition('.')[0]} is not installed")


# -- is it the same step? ----------------------------------------------------------------------------


def refuse_wrong_steps(row: Row, engine: Engine) -> None:
    """Refuse an engine whose step of DP-SGD differs from the definition, because its time would mean nothing.

    Two steps on two records are compared: without noise, the movement of the weights must be the mean of the clipped
    gradients, which are computed one record at a time; with noise, every trained tensor must move.

    Raises:
        Cannot: the step differs; the message says how.
    """
    if not (engine.private and isinstance(row.method, DpSgd)):
        return
    _refuse_unavailable(row, engine)
    small = replace(row, batch=2, max_physical_batch_size=1 if row.max_physical_batch_size else None)
    torch.manual_seed(1)
    batch = row.records(2)
    expected = _clipped_mean(row, engine, *batch)
    moved = _movement(small, engine, Settings(1.0, 0.0), batch)
    error = _norm([a - b for a, b in zip(moved, expected, strict=True)]) / _norm(expected)
    still = sum(not bool(t.any()) for t in _movement(small, engine, Settings(1.0, 1.0), batch))
    if still:
        raise Cannot(f"leaves {still} of {len(moved)} tensors untrained")
    if not error < 1e-3:
        raise Cannot(f"the sum of clipped gradients is wrong by {100 * error:.2g} %")


def _clipped_mean(row: Row, engine: Engine, x: Tensor, y: Tensor) -> list[Tensor]:
    torch.manual_seed(0)
    with quiet():
        model = engine.adapt(row.model())
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = [torch.zeros_like(p) for p in parameters]
    for index in range(len(x)):
        value = losses(model(x[index : index + 1]), y[index : index + 1]).sum()
        gradients = torch.autograd.grad(value, parameters)
        factor = min(1.0, CLIP / _norm(gradients)) / len(x)
        total = [t + factor * g for t, g in zip(total, gradients, strict=True)]
    return total


def _movement(row: Row, engine: Engine, settings: Settings, batch: Batch) -> list[Tensor]:
    training = _build(row, engine, settings)
    parameters = [p for p in training.model.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in parameters]
    with quiet():
        training.step(*batch)
    return [a - p.detach() for a, p in zip(before, parameters, strict=True)]


def _norm(tensors: Any) -> float:
    return float(torch.stack([t.double().norm() for t in tensors]).norm())
