"""The features of a run: a map whose output is computed once and cached, and a public whitening on top of it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gnomon.data.records import Records
from gnomon.errors import SettingError
from gnomon.features.checks import check_private
from gnomon.features.compute import compute
from gnomon.features.distortion import Distortion, augmented
from gnomon.features.feature_map import FeatureMap, Origin, as_float, compose
from gnomon.features.grid_whitening import GridWhitening
from gnomon.features.registry import Facts, build
from gnomon.features.whitening import PublicWhitening
from gnomon.validate import whole


@dataclass(frozen=True)
class Pipeline:
    """Features of private, public and test records: a base map, and optionally a whitening by the public features.

    The features of the base map are computed once and cached; another whitening of the same public features costs a
    matrix product. Records keep their raw form as `Records.raw`, by which the ledger recognises them.

    Attributes:
        base: the map that is computed once.
        whitening: the whitening of its features, or None.
        public: the base features of the public records and their copies, with their targets; None without any.
        cache: the folder of computed features, or None.
        progress: whether to show progress bars.

    >>> import torch
    >>> from gnomon.features import Scaled
    >>> Pipeline(Scaled((3,)), progress=False).records(Records(torch.rand(5, 3), torch.zeros(5))).inputs.shape
    torch.Size([5, 4])
    """

    base: FeatureMap
    whitening: PublicWhitening | None = None
    public: Records | None = None
    cache: str | os.PathLike[str] | None = None
    progress: bool = field(default=True, compare=False)

    @property
    def feature_map(self) -> FeatureMap:
        """The whole map, from the inputs of a record to its features."""
        return self.base if self.whitening is None else compose(self.base, self.whitening)

    def whitened(self, k: int | None = None, lam: float = 0.1) -> Pipeline:
        """Return the pipeline with a whitening of the public features; another one if it has one already.

        Features on a grid of cells are whitened by the same directions in every cell.

        Raises:
            SettingError: there are no public records.
        """
        if self.public is None:
            raise SettingError(
                "whitening_directions", k, "none: the whitening needs public records, and there are none"
            )
        if self.whitening is not None:
            return replace(self, whitening=self.whitening.with_(k, lam))
        raw = self.public if self.public.raw is None else self.public.raw
        origin, cells = self.base.origin | Origin.public(raw), self.base.grid_cells
        if cells > 1:
            return replace(self, whitening=GridWhitening(self.public.inputs, cells, k, lam, origin=origin))
        return replace(self, whitening=PublicWhitening(self.public.inputs, k, lam, origin=origin))

    def records(self, records: Records, private: bool = True) -> Records:
        """Return the features of records, with the records themselves as `raw`.

        Raises:
            DataError: a feature is not finite, or a public record of the map is among the private records.
        """
        features = compute(
            self.base, records, cache=self.cache, dtype="float16", progress=self.progress, private=private
        )
        if self.whitening is not None and private:
            check_private(self.whitening, records)
        return Records(self._whiten(features), records.targets, records.groups, as_values(records))

    @property
    def public_features(self) -> Records | None:
        """The features of the public records and their copies; the features of the first copies come first."""
        if self.public is None:
            return None
        return replace(self.public, inputs=self._whiten(self.public.inputs))

    def _whiten(self, features: Tensor) -> Tensor:
        if self.whitening is None:
            return features.float()
        return compute(self.whitening, features, progress=False, private=False)


def as_values(records: Records) -> Records:
    """Return records whose bytes are their values over 255, as the maps take them and as files are loaded.

    The same images as bytes and as numbers are then one data set in the ledger.

    >>> import torch
    >>> as_values(Records(torch.tensor([[51]], dtype=torch.uint8), torch.zeros(1))).inputs
    tensor([[0.2000]])
    """
    return replace(records, inputs=as_float(records.inputs)) if records.inputs.dtype == torch.uint8 else records


def pipeline(
    features: str | FeatureMap,
    facts: Facts,
    *,
    copies: int = 1,
    distortion: str | Distortion = "none",
    cache: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Pipeline:
    """Return the pipeline of a feature map, without a whitening.

    Args:
        features: the map, or its name as `gnomon.features.build` takes it.
        facts: public facts about the records, among them the public records.
        copies: the number of distorted copies of each public image, the image itself included.
        distortion: the distortion of the copies: "none", a name that `augmented` knows, or a `Distortion`.
        cache: the folder of computed features; None to compute them each time.
        progress: whether to show progress bars.

    Raises:
        SettingError: the map does not fit the records, or copies are asked for without a distortion.

    >>> import torch
    >>> public = Records(torch.rand(20, 1, 8, 8), torch.arange(20) % 2)
    >>> facts = Facts((1, 8, 8), public)
    >>> features = pipeline("scattering", facts, copies=3, distortion="strokes", progress=False)
    >>> features = features.whitened(k=5, lam=0.1)
    >>> features.records(Records(torch.rand(7, 1, 8, 8), torch.zeros(7).long())).inputs.shape
    torch.Size([7, 5])
    >>> len(features.public_features)
    60
    """
    copies = whole("public-copies", copies)
    if copies > 1 and distortion == "none":
        raise SettingError("public-copies", copies, "1, or a distortion: copies that are all alike add nothing")
    public = facts.public
    base = features if isinstance(features, FeatureMap) else build(features, facts)
    if public is None or not len(public):
        return Pipeline(base, cache=cache, progress=progress)
    inputs, targets = public.inputs, public.targets
    raw = public
    if copies > 1:
        inputs = augmented(inputs, copies=copies, kind=distortion, seed=facts.seed)
        targets = targets.repeat(copies)
        raw = public[list(range(len(public))) * copies]
    raw = as_values(raw)
    mapped = compute(base, inputs, cache=cache, dtype="float16", progress=progress, private=False)
    return Pipeline(base, None, Records(mapped.float(), targets, raw=raw), cache, progress)
