"""Feature maps by name, as settings and files give them: `scattering`, `patches:600`, `random:500`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gnomon.data.records import Records
from gnomon.errors import SettingError
from gnomon.features.feature_map import FeatureMap
from gnomon.features.ngrams import HashedNgrams
from gnomon.features.patches import WhitenedPatches
from gnomon.features.random_features import RandomFeatures
from gnomon.features.scaled import Scaled
from gnomon.features.scattering import Scattering


@dataclass(frozen=True)
class NamedMap:
    """A feature map that settings offer by name."""

    make: Callable[[Sequence[int], Records | None, int | None, int], FeatureMap]
    """(shape of a record, public records, size or None, seed) -> the map."""
    summary: str
    sized: bool = False
    """Whether the name may be followed by a size, as in `patches:600`."""
    public: bool = False
    """Whether the map is made from public records."""


def _scattering(shape: Sequence[int], public: Records | None, size: int | None, seed: int) -> FeatureMap:
    return Scattering(shape)


def _patches(shape: Sequence[int], public: Records | None, size: int | None, seed: int) -> FeatureMap:
    images = None if public is None else public.inputs
    return WhitenedPatches(images, seed=seed) if size is None else WhitenedPatches(images, filters=size, seed=seed)


def _random(shape: Sequence[int], public: Records | None, size: int | None, seed: int) -> FeatureMap:
    columns = shape[0] if len(shape) == 1 else 0
    if not columns:
        raise SettingError(
            "features", "random", f"a map of images or texts; records of shape {tuple(shape)} are no rows"
        )
    return RandomFeatures([(0.0, 1.0)] * columns, features=size or 500, inputs=True, seed=seed)


def _ngrams(shape: Sequence[int], public: Records | None, size: int | None, seed: int) -> FeatureMap:
    return HashedNgrams(size or 4096)


def _scaled(shape: Sequence[int], public: Records | None, size: int | None, seed: int) -> FeatureMap:
    return Scaled(shape)


MAPS: dict[str, NamedMap] = {
    "scattering": NamedMap(_scattering, "scattering coefficients of images, for grey images"),
    "patches": NamedMap(_patches, "responses to whitened patches of public images", sized=True, public=True),
    "random": NamedMap(_random, "random Fourier features of columns between 0 and 1, and the columns", sized=True),
    "ngrams": NamedMap(_ngrams, "hashed n-grams of rows of tokens", sized=True),
    "scaled": NamedMap(_scaled, "the inputs themselves with norm one, for tables and embeddings"),
}
"""Feature maps by name."""


def parse(text: str) -> tuple[NamedMap, int | None]:
    """Return the map that a text names, and its size, or None for the map's default.

    Raises:
        SettingError: there is no such map, or the size is not a whole number.

    >>> parse("patches:200")[1], parse("scattering")[1]
    (200, None)
    """
    name, colon, size = str(text).partition(":")
    if name not in MAPS:
        raise SettingError("features", text, f"one of {', '.join(MAPS)}")
    named = MAPS[name]
    if colon and (not named.sized or not size.isdigit() or not int(size)):
        sized = ", ".join(key for key, entry in MAPS.items() if entry.sized)
        raise SettingError("features", text, f"a size of at least 1 after {sized}, as in patches:600, or no size")
    return named, int(size) if colon else None


def build(text: str, shape: Sequence[int], public: Any = None, seed: int = 0) -> FeatureMap:
    """Return the feature map that a text names.

    Args:
        text: the name of the map, with a size if it has one, such as `patches:600`.
        shape: the shape of one record.
        public: the public records, for maps that are made from them.
        seed: the seed of random choices inside the map.

    Raises:
        SettingError: there is no such map, it does not fit the shape, or it needs public records.

    >>> build("scattering", (1, 28, 28)).name
    'scattering of 1x28x28 images, J = 2, L = 8, group norm, unit norm'
    """
    named, size = parse(text)
    if named.public and (public is None or not len(public)):
        raise SettingError("features", text, "a map that needs no public records, such as scattering")
    return named.make(shape, public, size, seed)
