"""Feature maps by name, as settings and files give them: `scattering`, `patches:600`, `random:500`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gnomon.data.records import Records
from gnomon.errors import SettingError
from gnomon.features.binned import of_columns
from gnomon.features.concatenated import Concatenated
from gnomon.features.context import TokenContext
from gnomon.features.feature_map import FeatureMap
from gnomon.features.ngrams import HashedNgrams
from gnomon.features.patches import WhitenedPatches
from gnomon.features.random_features import RandomFeatures
from gnomon.features.scaled import Scaled
from gnomon.features.scattering import Scattering

SMALL_SIDE, RESIZED_SIDE = 16, 16
"""Images with a shorter side below the first number are resized to the second one for scattering."""


FILTERS = 600
COLOUR_THRESHOLD, GREY_THRESHOLD = 1.25, 1.0
"""Patches of images: the number of filters, and the soft thresholds for colour and for grey images."""


@dataclass(frozen=True)
class Facts:
    """Public facts about records, from which a feature map is made.

    Attributes:
        shape: the shape of one record.
        public: the public records, or None.
        columns: the named columns of a table.
        tokens: the number of different tokens, if records are rows of tokens.
        seed: the seed of random choices inside the map.

    >>> Facts((1, 28, 28)).public is None
    True
    """

    shape: Sequence[int]
    public: Records | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    tokens: int = 0
    seed: int = 0


@dataclass(frozen=True)
class NamedMap:
    """A feature map that settings offer by name."""

    make: Callable[[Facts, int | None], FeatureMap]
    """(facts about the records, size or None) -> the map."""
    summary: str
    sized: bool = False
    """Whether the name may be followed by a size, as in `patches:600`."""
    public: bool = False
    """Whether the map is made from public records."""


def _scattering(facts: Facts, size: int | None) -> FeatureMap:
    small = len(facts.shape) == 3 and min(facts.shape[1:]) < SMALL_SIDE
    return Scattering(facts.shape, resize=RESIZED_SIDE if small else None)


def _patches(facts: Facts, size: int | None) -> FeatureMap:
    if len(facts.shape) != 3 or min(facts.shape[1:]) < SMALL_SIDE:
        shape = tuple(facts.shape)
        expected = f"a map of other records, because {shape} is no image with sides of at least {SMALL_SIDE}"
        raise SettingError("features", "patches", expected)
    threshold = COLOUR_THRESHOLD if facts.shape[0] > 1 else GREY_THRESHOLD
    return WhitenedPatches(facts.public, filters=size or FILTERS, threshold=threshold, seed=facts.seed)


def _binned(facts: Facts, size: int | None) -> FeatureMap:
    if not facts.columns:
        raise SettingError("features", "binned", "a map that needs no names and ranges of columns, such as scaled")
    return of_columns(facts.shape[0], facts.columns, bins=size or 10)


def _random(facts: Facts, size: int | None) -> FeatureMap:
    if len(facts.shape) != 1:
        rows = f"records of shape {tuple(facts.shape)} are no rows"
        raise SettingError("features", "random", f"a map of images, because {rows}")
    return RandomFeatures([(0.0, 1.0)] * facts.shape[0], features=size or 500, inputs=True, seed=facts.seed)


def _context(facts: Facts, size: int | None) -> FeatureMap:
    if not facts.tokens:
        raise SettingError("features", "context", "a map of numbers, because records are no rows of tokens")
    return TokenContext(facts.tokens, positions=size or 1024)


def _ngrams(facts: Facts, size: int | None) -> FeatureMap:
    return HashedNgrams(size or 4096)


def _scaled(facts: Facts, size: int | None) -> FeatureMap:
    return Scaled(facts.shape)


MAPS: dict[str, NamedMap] = {
    "scattering": NamedMap(_scattering, "scattering coefficients of images; no statistics"),
    "patches": NamedMap(_patches, "responses to whitened patches of public images", sized=True, public=True),
    "binned": NamedMap(_binned, "numbers of a table in bins of their declared ranges, categories", sized=True),
    "random": NamedMap(_random, "random Fourier features of columns between 0 and 1, and the columns", sized=True),
    "context": NamedMap(_context, "the last tokens of a sequence, to predict the next one", sized=True),
    "ngrams": NamedMap(_ngrams, "hashed n-grams of rows of tokens", sized=True),
    "scaled": NamedMap(_scaled, "the inputs themselves with norm one, for embeddings and other rows"),
}
"""Feature maps by name."""


def parse(text: str) -> list[tuple[NamedMap, int | None]]:
    """Return the maps that a text names, each with its size, or None for the map's default.

    Raises:
        SettingError: there is no such map, or the size is not a whole number.

    >>> [size for _, size in parse("patches:200")], len(parse("scattering+patches"))
    ([200], 2)
    """
    return [_parse(text, part) for part in str(text).split("+")]


def _parse(text: str, part: str) -> tuple[NamedMap, int | None]:
    name, colon, size = part.partition(":")
    if name not in MAPS:
        raise SettingError("features", text, f"one of {', '.join(MAPS)}, or several of them joined by +")
    named = MAPS[name]
    if colon and (not named.sized or not size.isdigit() or not int(size)):
        sized = ", ".join(key for key, entry in MAPS.items() if entry.sized)
        raise SettingError("features", text, f"a size of at least 1 after {sized}, as in patches:600, or no size")
    return named, int(size) if colon else None


def reads_public(text: str) -> bool:
    """Return whether one of the maps that a text names is made from public records.

    >>> reads_public("scattering+patches"), reads_public("scattering")
    (True, False)
    """
    return any(named.public for named, _ in parse(text))


def build(text: str, facts: Facts) -> FeatureMap:
    """Return the feature map that a text names.

    Args:
        text: the name of the map, with a size if it has one, such as `patches:600`; several maps are joined by `+`,
            and their features are concatenated.
        facts: public facts about the records.

    Raises:
        SettingError: there is no such map, it does not fit the records, or it needs public records.

    >>> build("scattering", Facts((1, 28, 28))).name
    'scattering of 1x28x28 images, J = 2, L = 8, group norm, unit norm'
    """
    if reads_public(text) and (facts.public is None or not len(facts.public)):
        raise SettingError("features", text, "a map that needs no public records, such as scattering")
    maps = [named.make(facts, size) for named, size in parse(text)]
    return maps[0] if len(maps) == 1 else Concatenated(maps)
