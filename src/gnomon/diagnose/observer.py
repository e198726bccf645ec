"""An observer of training that records diagnostics at an interval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gnomon import validate
from gnomon.clipping import Flat
from gnomon.data import Loader
from gnomon.diagnose.clipping import length, signal_to_noise
from gnomon.diagnose.cloud import spread
from gnomon.diagnose.overlap import angles, skew
from gnomon.diagnose.portrait import SHOWN, Sitter, portrait
from gnomon.diagnose.spectrum import gram
from gnomon.errors import SettingError
from gnomon.release.door import admission
from gnomon.subspaces import Basis
from gnomon.subspaces.basis import AmbientBasis
from gnomon.subspaces.beside_loss import BesideLossBasis
from gnomon.subspaces.eigenspace import SharedBasis, TensorBases, mixing
from gnomon.subspaces.embedding import EmbeddingBasis
from gnomon.subspaces.gaussian_sketch import SketchBasis
from gnomon.training.observer import StepView
from gnomon.updates import Updates, gradients
from gnomon.updates.snapshot import untouched

EVERY = 20
"""Steps between two diagnoses unless told otherwise."""

CLIPPED = ("clipped", "incremental", "bias/cosine", "bias/ratio")
"""What a record says about clipping."""


class Diagnostics:
    """Hands a record of plain values to `sink` every so many steps; give it to a Trainer as an observer.

    Values under `public/` come from public records and released weights alone; those under `unprotected/` read
    private records without noise and are for the data holder. `public` are the records to hold gradients against
    (default: those of the method, if it has any); half of them make a subspace of `rank` dimensions for the other half.
    Spectra look at `records` gradients and keep `shown` eigenvalues.
    `public_only=True` reads no private record: everything that needs gradients is computed on public ones.

    >>> from torch import nn
    >>> from gnomon.release import SeededNoise
    >>> from gnomon.training import Trainer
    >>> model, found = nn.Linear(4, 2), []
    >>> data = lambda n: (torch.randn(n, 4), torch.randint(0, 2, (n,)))
    >>> trainer = Trainer(
    ...     model, nn.CrossEntropyLoss(reduction="none"), torch.optim.SGD(model.parameters(), lr=0.5),
    ...     sample_rate=0.5, expected_batch_size=10, noise_multiplier=1.0, target_delta=1e-5, steps=3,
    ...     noise=SeededNoise(0), progress=False, observers=[Diagnostics(found.append, every=2, public=data(20))])
    >>> _ = trainer.fit(data(20))
    >>> [one["step"] for one in found], 0 <= found[0]["public/skew"] <= 1
    ([0, 2], True)
    """

    def __init__(
        self,
        sink: Callable[[dict[str, Any]], None],
        *,
        every: int = EVERY,
        public: Any = None,
        rank: int = 20,
        records: int = 100,
        shown: int = SHOWN,
        public_only: bool = False,
    ) -> None:
        self.sink, self.public, self.public_only = sink, public, public_only
        self.every = validate.whole("every", every)
        self.rank = validate.whole("rank", rank)
        self.records = validate.whole("records", records, least=2)
        self.shown = validate.whole("shown", shown)
        self._last: tuple[Updates, Tensor] | None = None

    def __call__(self, view: StepView) -> None:
        """One step; most of them are none of its business."""
        if view.context.step % self.every == 0:
            self.sink(self.record(view))

    def record(self, view: StepView) -> dict[str, Any]:
        """The diagnostics of one step."""
        record: dict[str, Any] = {
            "step": view.context.step,
            "epoch": view.context.step / view.context.steps_per_epoch,
        }
        with untouched(view.context.model):
            public = self._public(view)
        shared: SharedBasis | None = None
        if public is not None:
            found, shared = self._of_public(public, view)
            record |= {f"public/{name}": value for name, value in found.items()}
        if not self.public_only:
            found = self._of_private(view, shared)
            record |= {f"unprotected/{name}": value for name, value in found.items()}
        return record

    def _public(self, view: StepView) -> Updates | None:
        """Gradients of the public records at the current weights."""
        records = view.mechanism.method.public if self.public is None else self.public
        if records is None:
            if self.public_only:
                raise SettingError("public", None, "public records: without private ones nothing else is read")
            return None
        device = next(iter(view.context.like.values())).device
        loader = Loader(records, "public", device)
        inputs, targets = loader.take(spread(len(loader), 2 * self.records))
        context = view.context
        updates = gradients(context.model, context.loss, inputs, targets, layouts=context.layouts)
        usable = torch.isfinite(updates.norms()).nonzero().squeeze(1)
        return updates.select(usable) if len(usable) >= 4 else None

    def _of_public(self, public: Updates, view: StepView) -> tuple[dict[str, Any], SharedBasis]:
        """Spectrum, skew between halves, drift since last time, and the held-out half's portrait."""
        inner, dtype = gram(public), public.losses.dtype
        ours, theirs = torch.arange(0, len(public), 2), torch.arange(1, len(public), 2)
        first, second = (mixing(inner[half][:, half], self.rank, torch.float64) for half in (ours, theirs))
        overlap = first.T @ inner[ours][:, theirs] @ second
        spectral, frobenius = skew(overlap)
        half = SharedBasis(public.select(ours), first.to(dtype))
        held_out = public.select(theirs)
        clip = admission(held_out, Flat(), view.mechanism.max_grad_norm)
        sitter = Sitter(held_out, clip, held_out, dict, half, half)
        record, _ = portrait(
            sitter, bound=view.mechanism.max_grad_norm, unit=1.0, rank=self.rank, records=self.records, shown=self.shown
        )
        if view.mechanism.method.displaces:  # the bound is for displacements, and these are gradients
            record = {name: value for name, value in record.items() if name not in CLIPPED}
        record |= {"skew": spectral, "skew/frobenius": frobenius, "angles": angles(overlap).tolist()}
        whole = mixing(inner, self.rank, torch.float64)
        if self._last is not None:
            before, old = self._last
            record["drift"] = angles(old.T @ before.gram(public).double() @ whole).tolist()
        self._last = public, whole
        return record, SharedBasis(public, whole.to(dtype))

    def _of_private(self, view: StepView, shared: SharedBasis | None) -> dict[str, Any]:
        """The portrait of the step's updates, and how they compare with the noise."""
        ambient = isinstance(view.basis, AmbientBasis)
        basis = view.basis.inner if isinstance(view.basis, BesideLossBasis) else view.basis  # a loss is no direction
        own = made_of_public(basis)
        public = shared if own is None else own
        sitter = Sitter(view.updates, view.admitted, view.updates, dict, looked_into(basis, public), public)
        if not ambient:
            route = view.mechanism.method.route
            seen = route.coordinates(view.basis, view.updates)
            sitter = replace(sitter, seen=seen, lift=lambda vector: route.lift(view.basis, vector))
        record, signal = portrait(
            sitter,
            bound=view.mechanism.max_grad_norm,
            unit=view.mechanism.method.unit,
            rank=self.rank,
            records=self.records,
            shown=self.shown,
        )
        if "energy" in record:
            record["energy/of"] = "diagnosis" if own is None else "method"
        if record:
            deviation = view.mechanism.noise_multiplier * view.mechanism.max_grad_norm
            ratio = signal_to_noise(signal * view.mechanism.expected_batch_size, deviation, dimensions(view))
            record["signal_to_noise"] = ratio if ratio < float("inf") else None
        return record


def made_of_public(basis: Basis) -> SharedBasis | TensorBases | None:
    """The subspace of public gradients in a method's basis, if it has one; a residual beside it is no part of it."""
    if isinstance(basis, EmbeddingBasis):
        return basis.embedding
    return basis if isinstance(basis, SharedBasis | TensorBases) else None


def looked_into(basis: Basis, public: SharedBasis | TensorBases | None) -> Basis | None:
    """Where norms after projection are taken: in the public subspace, or in random directions that are orthonormal.

    A sketch is not: it stretches some updates and shrinks others.
    """
    random = not isinstance(basis, AmbientBasis | EmbeddingBasis | SketchBasis | SharedBasis | TensorBases)
    return basis if random else public


def dimensions(view: StepView) -> float:
    """In how many dimensions the noise of a step reaches the model: `|V 1|^2`, for orthonormal V and for masks."""
    ones = {name: torch.ones_like(value) for name, value in view.basis.like.items()}
    return length(view.basis.lift(ones)) ** 2
