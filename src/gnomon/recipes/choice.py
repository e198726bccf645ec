"""The feature map that a recipe chooses, from public facts about the data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gnomon.errors import SettingError

COPIES = 20
"""Copies of each public image, the image itself included."""

LEAST_SIDE = 16
"""The smallest side of images that are treated as images; smaller ones are rows of numbers."""


RECIPES = {
    "best": "fixed features, whitened by public records, and a softmax head that starts from them",
    "cold": "the same without the start: public records choose directions alone",
    "no-public": "fixed features and a softmax head that starts from zero; no public records",
}
"""Recipes by name."""


@dataclass(frozen=True)
class Reason:
    """A setting that a recipe chose, and why."""

    setting: str
    value: str
    why: str


def as_table(reasons: Sequence[Reason]) -> str:
    """Return settings and reasons as lines of text.

    >>> print(as_table([Reason("lr", "0.5", "stable"), Reason("rounds", "12", "enough")]))
    lr      0.5  stable
    rounds  12   enough
    """
    width = max(len(reason.setting) for reason in reasons)
    values = max(len(reason.value) for reason in reasons)
    return "\n".join(f"{r.setting:<{width}}  {r.value:<{values}}  {r.why}" for r in reasons)


@dataclass(frozen=True)
class Choice:
    """The features of a recipe.

    Attributes:
        kind: the kind of data: "grey images", "colour images", "rows" or "tokens".
        features: the name of the feature map, as `gnomon.features.build` takes it.
        distortion: the distortion of public images, or "none".
        copies: copies of each public record.
        whiten: whether the features are whitened by those of the public records.
        start: whether training starts from a head that is trained on the public records.
        reasons: the choices in words.
    """

    kind: str
    features: str
    distortion: str
    copies: int
    whiten: bool
    start: bool
    reasons: tuple[Reason, ...]


def kind_of(shape: Sequence[int], tokens: bool = False) -> str:
    """Return the kind of data that records of a shape are.

    >>> kind_of((1, 28, 28)), kind_of((3, 32, 32)), kind_of((1, 8, 8)), kind_of((104,)), kind_of((80,), tokens=True)
    ('grey images', 'colour images', 'rows', 'rows', 'tokens')
    """
    if tokens:
        return "tokens"
    if len(shape) == 3 and min(shape[1:]) >= LEAST_SIDE:
        return "grey images" if shape[0] == 1 else "colour images"
    return "rows"


def choose(
    recipe: str,
    shape: Sequence[int],
    *,
    tokens: bool = False,
    public: int = 0,
    distortion: str = "none",
    features: str | None = None,
) -> Choice:
    """Return the features that a recipe chooses.

    Args:
        recipe: "best", "cold" or "no-public".
        shape: the shape of one record.
        tokens: whether records are rows of tokens.
        public: the number of public records.
        distortion: the distortion of public images, if the user chose one.
        features: the feature map, if the user chose one.

    Raises:
        SettingError: the recipe needs public records, or there is no such recipe.

    >>> choose("best", (1, 28, 28), public=100).features, choose("best", (3, 32, 32)).features
    ('scattering', 'scattering')
    """
    if recipe not in RECIPES:
        raise SettingError("recipe", recipe, f"one of {', '.join(RECIPES)}")
    if recipe == "cold" and not public:
        raise SettingError("recipe", recipe, "best or no-public: there are no public records")
    uses_public = bool(public) and recipe != "no-public"
    kind = kind_of(shape, tokens)
    reasons = []
    if features is None:
        features, why = _map_for(kind, uses_public)
        reasons.append(Reason("features", features, why))
    image = kind in ("grey images", "colour images")
    copies = COPIES if image and uses_public else 1
    if copies == 1:
        distortion = "none"
    elif distortion == "none":
        distortion = "objects" if kind == "grey images" else "colour"
        remedy = "; use strokes for handwriting, which has no mirror images" if kind == "grey images" else ""
        reasons.append(Reason("distortion", distortion, f"{kind}{remedy}"))
    if copies > 1:
        why = f"{public} public images with small distortions show more directions than alone"
        reasons.append(Reason("public-copies", str(copies), why))
    if not uses_public:
        reasons.append(Reason("warm-start", "none", "no public records: training starts from zero, without whitening"))
    return Choice(kind, features, distortion, copies, uses_public, uses_public and recipe == "best", tuple(reasons))


def _map_for(kind: str, uses_public: bool) -> tuple[str, str]:
    """Return the feature map of a kind of data, and why."""
    if kind == "grey images":
        return "scattering", "grey images: wavelets need no training"
    if kind == "colour images":
        if uses_public:
            return "patches", "colour images: filters are patches of the public images"
        return "scattering", "colour images without public records: wavelets need no training"
    if kind == "tokens":
        return "ngrams", "rows of tokens: hashed n-grams have no vocabulary that would have to be learnt"
    return "scaled", "rows of numbers: the inputs themselves with norm one, and a constant in the place of a bias"


def effective_dimension(dimension: int, whitening_dimension: float | None) -> float:
    """Return the effective dimension of features: that of the whitening, or a guess without public records.

    >>> effective_dimension(100, 12.5), round(effective_dimension(100, None))
    (12.5, 10)
    """
    return math.sqrt(dimension) if whitening_dimension is None else whitening_dimension
