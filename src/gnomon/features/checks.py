"""Checks of a feature map: it looks at one record at a time, always alike, and at no private record beforehand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from gnomon.data.records import Records
from gnomon.errors import DataError, SettingError
from gnomon.features.feature_map import FeatureMap, record_fingerprints
from gnomon.text import counted

TOLERANCE = 1e-3
"""The largest difference of two features of one record, relative to their norm, that counts as rounding."""

REMEDY = "a map that computes the features of each record from that record alone"


def check_map(feature_map: FeatureMap) -> None:
    """Raise SettingError unless this is a feature map with all its layers in evaluation mode.

    >>> from torch import nn
    >>> check_map(nn.Linear(2, 3))
    Traceback (most recent call last):
    gnomon.errors.SettingError: feature_map = 'Linear' is invalid; expected a gnomon.features.FeatureMap; wrap a \
frozen network in gnomon.features.Pretrained
    """
    if not isinstance(feature_map, FeatureMap):
        expected = "a gnomon.features.FeatureMap; wrap a frozen network in gnomon.features.Pretrained"
        raise SettingError("feature_map", type(feature_map).__name__, expected)
    training = [name or "the map itself" for name, module in feature_map.named_modules() if module.training]
    if training:
        expected = f"all layers in evaluation mode, but {training[0]} is in training mode; call feature_map.eval()"
        raise SettingError("feature_map", feature_map.name, expected)


def check_per_record(feature_map: FeatureMap, inputs: Any) -> Tensor:
    """Raise SettingError if the features of a record depend on other records, on chance or on earlier calls.

    The features of each record alone are compared with its features in the batch, in the reverse order, with other
    companions, and at a second call, up to rounding. This is a test on a sample and finds mistakes such as batch
    statistics, dropout or counters; it does not prove that a map is safe.

    Args:
        feature_map: the map.
        inputs: a few records, as the map takes them; a tensor or a list.

    Returns:
        The features of the sample.

    >>> from gnomon.features import RandomFeatures
    >>> check_per_record(RandomFeatures([(0, 1)], features=5), torch.rand(4, 1)).shape
    torch.Size([4, 10])
    """
    check_map(feature_map)
    before = feature_map.identity()
    count = len(inputs)
    batch = feature_map(inputs)
    repeated = feature_map(inputs)
    if _differ(batch, repeated):
        raise SettingError("feature_map", feature_map.name, "a map without randomness or memory: two calls differ")
    alone = torch.cat([feature_map(inputs[i : i + 1]) for i in range(count)]) if count else batch
    reverse = inputs.flip(0) if isinstance(inputs, Tensor) else inputs[::-1]
    half = (count + 1) // 2
    views = {
        "alone and in a batch": alone,
        "in a batch and in the same batch in reverse order": feature_map(reverse).flip(0),
        "in a batch and with other companions": torch.cat([feature_map(inputs[:half]), feature_map(inputs[half:])]),
    }
    for how, features in views.items():
        if _differ(batch, features):
            difference = f"{REMEDY}: the features of a record differ {how} (for example batch normalisation does this)"
            raise SettingError("feature_map", feature_map.name, difference)
    if feature_map.identity() != before:
        raise SettingError("feature_map", feature_map.name, "a map whose buffers and weights no call changes")
    return batch


def check_private(feature_map: FeatureMap, private: Records | Tensor | Iterable[str | bytes]) -> None:
    """Raise DataError if a public record behind the statistics of the map is among the private records.

    Records are compared by the content of their inputs. Distorted or rescaled copies are not found.

    Args:
        feature_map: the map.
        private: the private records or texts, or their fingerprints.

    >>> from gnomon.features import PublicWhitening
    >>> public = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
    >>> whitening = PublicWhitening(public, k=2)
    >>> check_private(whitening, torch.zeros(3, 4))
    >>> check_private(whitening, public[3:5])
    Traceback (most recent call last):
    gnomon.errors.DataError: 2 of 10 public records of whitening by 2 public directions, lam = 0.1 are among the \
private records: remove them from the private records, or build the map from other public records
    """
    if not feature_map.origin.fingerprints:
        return
    shared = feature_map.origin.fingerprints.intersection(record_fingerprints(private))
    if shared:
        subject = f"{len(shared)} of {counted(feature_map.origin.records, 'public record')} of {feature_map.name}"
        remedy = "remove them from the private records, or build the map from other public records"
        raise DataError(subject, "are among the private records", remedy)


def _differ(first: Tensor, second: Tensor) -> bool:
    """Return whether features differ by more than rounding; values that are not finite are reported elsewhere."""
    first, second = first.nan_to_num(), second.nan_to_num()
    if first.shape != second.shape:
        return True
    largest = torch.linalg.vector_norm(first, dim=1).clamp(min=1e-6)
    return bool((torch.linalg.vector_norm(first - second, dim=1) > TOLERANCE * largest).any())
