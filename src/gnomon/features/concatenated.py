"""Several feature maps of the same record beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gnomon.errors import SettingError
from gnomon.features.feature_map import FeatureMap, Origin, unit_norm
from gnomon.validate import positive


class Concatenated(FeatureMap):
    """The features of several maps beside each other, with unit norm.

    The features of each map are scaled to norm one, multiplied by its weight and concatenated.

    Args:
        maps: the maps; all of them take the inputs of a record.
        weights: the weight of each map (default: one).

    Raises:
        SettingError: there are fewer than two maps, or not as many weights.

    >>> from gnomon.features import RandomFeatures, Scaled
    >>> both = Concatenated([Scaled((3,)), RandomFeatures([(0, 1)] * 3, features=10)])
    >>> both(torch.rand(4, 3)).shape, both.origin.kind
    (torch.Size([4, 24]), 'constants')
    """

    def __init__(self, maps: Sequence[FeatureMap], weights: Sequence[float] | None = None) -> None:
        if len(maps) < 2 or not all(isinstance(part, FeatureMap) for part in maps):
            raise SettingError("maps", [type(part).__name__ for part in maps], "at least two feature maps")
        weights = [1.0] * len(maps) if weights is None else [positive("weights", weight) for weight in weights]
        if len(weights) != len(maps):
            raise SettingError("weights", weights, f"one weight for each of {len(maps)} maps")
        origin = Origin()
        for part in maps:
            origin |= part.origin
        known = [part.dimension for part in maps]
        dimension = None if any(size is None for size in known) else sum(size or 0 for size in known)
        super().__init__(
            " beside ".join(part.name for part in maps),
            dimension,
            origin=origin,
            settings={"maps": [part.identity() for part in maps], "weights": list(weights)},
        )
        self.maps, self.weights = nn.ModuleList(maps), list(weights)
        self.eval()

    def features(self, inputs: Any) -> Tensor:
        """Return the features of all maps, with unit norm."""
        parts = [weight * unit_norm(part(inputs)) for part, weight in zip(self.maps, self.weights, strict=True)]
        return unit_norm(torch.cat(parts, 1))
