"""An observer of training that records diagnostics at regular intervals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gnomon import validate
from gnomon.clipping import Flat
from gnomon.data import Loader
from gnomon.diagnose.measures import angles, evenly_spaced, gram, norm, signal_to_noise, skew
from gnomon.diagnose.statistics import SHOWN, ClippedUpdates, update_statistics
from gnomon.errors import SettingError
from gnomon.release.door import admission
from gnomon.subspaces.eigenspace import SharedBasis, mixing
from gnomon.training.observer import StepView
from gnomon.updates import Updates, gradients
from gnomon.updates.snapshot import untouched

EVERY = 20
"""Default number of steps between two records."""

CLIPPING_KEYS = ("clipped", "incremental", "bias/cosine", "bias/ratio")
"""Diagnostics that depend on the clip bound."""


class Diagnostics:
    """An observer that passes a record of plain values to `sink` at regular intervals.

    Values under `public/` depend on public records and released weights alone. Values under `unprotected/` read
    private records without noise, and are for the data holder only. An observer changes nothing in training.

    Args:
        sink: called with each record.
        every: the number of steps between two records.
        public: public records to compare gradients with (default: those of the method, if any). One half of them spans
            a subspace in which the other half is diagnosed.
        rank: the rank of this subspace.
        records: the number of gradients in a spectrum.
        shown: the largest number of eigenvalues in a record.
        public_only: whether to read public records only; a record then has no `unprotected/` values.

    >>> from torch import nn
    >>> from gnomon.release import SeededNoise
    >>> from gnomon.training import Trainer
    >>> model, records = nn.Linear(4, 2), []
    >>> data = lambda n: (torch.randn(n, 4), torch.randint(0, 2, (n,)))
    >>> trainer = Trainer(
    ...     model, nn.CrossEntropyLoss(reduction="none"), torch.optim.SGD(model.parameters(), lr=0.5),
    ...     sample_rate=0.5, expected_batch_size=10, noise_multiplier=1.0, target_delta=1e-5, steps=3,
    ...     noise=SeededNoise(0), progress=False, observers=[Diagnostics(records.append, every=2, public=data(20))])
    >>> _ = trainer.fit(data(20))
    >>> [record["step"] for record in records], 0 <= records[0]["public/skew"] <= 1
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
        self._previous: tuple[Updates, Tensor] | None = None

    def __call__(self, view: StepView) -> None:
        """Record the diagnostics of a step if they are due."""
        if view.context.step % self.every == 0:
            self.sink(self.record(view))

    def record(self, view: StepView) -> dict[str, Any]:
        """Return the diagnostics of one step.

        Raises:
            SettingError: `public_only` is set and there are no public records.
        """
        record: dict[str, Any] = {
            "step": view.context.step,
            "epoch": view.context.step / view.context.steps_per_epoch,
        }
        with untouched(view.context.model):
            public = self._public_gradients(view)
        public_basis: SharedBasis | None = None
        if public is not None:
            values, public_basis = self._public_diagnostics(public, view)
            record |= {f"public/{name}": value for name, value in values.items()}
        if not self.public_only:
            values = self._private_diagnostics(view, public_basis)
            record |= {f"unprotected/{name}": value for name, value in values.items()}
        return record

    def _public_gradients(self, view: StepView) -> Updates | None:
        """Return the finite gradients of public records at the current weights; None if there are too few."""
        records = view.mechanism.method.public if self.public is None else self.public
        if records is None:
            if self.public_only:
                raise SettingError("public", None, "public records, because public_only excludes private records")
            return None
        device = next(iter(view.context.like.values())).device
        loader = Loader(records, "public", device)
        inputs, targets = loader.take(evenly_spaced(len(loader), 2 * self.records))
        context = view.context
        updates = gradients(context.model, context.loss, inputs, targets, layouts=context.layouts)
        finite = torch.isfinite(updates.norms()).nonzero().squeeze(1)
        return updates.select(finite) if len(finite) >= 4 else None

    def _public_diagnostics(self, public: Updates, view: StepView) -> tuple[dict[str, Any], SharedBasis]:
        """Return the diagnostics of public gradients, and the subspace that all of them span.

        The odd half is diagnosed in the subspace of the even half. The drift compares the subspace with that of the
        previous record.
        """
        inner, dtype = gram(public), public.losses.dtype
        even, odd = torch.arange(0, len(public), 2), torch.arange(1, len(public), 2)
        even_mixing, odd_mixing = (mixing(inner[half][:, half], self.rank, torch.float64) for half in (even, odd))
        overlap = even_mixing.T @ inner[even][:, odd] @ odd_mixing
        spectral, frobenius = skew(overlap)
        even_basis = SharedBasis(public.select(even), even_mixing.to(dtype))
        held_out = public.select(odd)
        admitted = admission(held_out, Flat(), view.mechanism.max_grad_norm)
        record, _ = update_statistics(
            ClippedUpdates(held_out, admitted, held_out, dict, even_basis, even_basis),
            bound=view.mechanism.max_grad_norm,
            unit=1.0,
            rank=self.rank,
            records=self.records,
            shown=self.shown,
        )
        if view.mechanism.method.displaces:  # the clip bound applies to displacements, but public updates are gradients
            record = {name: value for name, value in record.items() if name not in CLIPPING_KEYS}
        record |= {"skew": spectral, "skew/frobenius": frobenius, "angles": angles(overlap).tolist()}
        public_mixing = mixing(inner, self.rank, torch.float64)
        if self._previous is not None:
            previous, previous_mixing = self._previous
            drift = previous_mixing.T @ previous.gram(public).double() @ public_mixing
            record["drift"] = angles(drift).tolist()
        self._previous = public, public_mixing
        return record, SharedBasis(public, public_mixing.to(dtype))

    def _private_diagnostics(self, view: StepView, public_basis: SharedBasis | None) -> dict[str, Any]:
        """Return the diagnostics of the step's updates, and their ratio to the noise.

        Energy is measured in the public subspace of the method, or in `public_basis` if the method has none. Norms
        after projection are measured in the projection of the method, or else in the public subspace.
        """
        route, method_basis = view.mechanism.method.route, view.basis.public_basis
        public = public_basis if method_basis is None else method_basis
        projection = view.basis.projection
        record, signal = update_statistics(
            ClippedUpdates(
                view.updates,
                view.admitted,
                route.coordinates(view.basis, view.updates),
                lambda vector: route.lift(view.basis, vector),
                public if projection is None else projection,
                public,
            ),
            bound=view.mechanism.max_grad_norm,
            unit=view.mechanism.method.unit,
            rank=self.rank,
            records=self.records,
            shown=self.shown,
        )
        if "energy" in record:
            record["energy/of"] = "diagnosis" if method_basis is None else "method"
        if record:
            deviation = view.mechanism.noise_multiplier * view.mechanism.max_grad_norm
            ratio = signal_to_noise(signal * view.mechanism.expected_batch_size, deviation, noise_dimensions(view))
            record["signal_to_noise"] = ratio if ratio < float("inf") else None
        return record


def noise_dimensions(view: StepView) -> float:
    """Return the number of dimensions in which noise reaches the model: `|V 1|^2`, for orthonormal V and for masks."""
    ones = {name: torch.ones_like(value) for name, value in view.basis.like.items()}
    return norm(view.basis.lift(ones)) ** 2
