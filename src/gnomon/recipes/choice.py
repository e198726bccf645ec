"""The feature map that a recipe chooses, from public facts about the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gnomon.errors import SettingError
from gnomon.features import Facts

COPIES = 20
"""Copies of each public image, the image itself included."""

LEAST_SIDE = 6
"""The smallest side of images that are treated as images; smaller ones are rows of numbers."""

LEAST_PATCHED_SIDE = 16
"""The smallest side of images of which patches are taken."""

RECIPES = {
    "best": "fixed features, whitened by public records, and a softmax head that starts from them",
    "cold": "the same without the start: public records choose directions alone",
    "no-public": "fixed features and a softmax head that starts from zero; no public records",
}
"""Recipes by name."""


@dataclass(frozen=True)
class Reason:
    """A setting that a recipe chose, and why.

    >>> Reason("lr", "0.5", "stable").value
    '0.5'
    """

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
class Kind:
    """A kind of data, and what a recipe does with it.

    Attributes:
        name: the name in words.
        features: the feature map where there are public records, and where there are none or images are too small.
        why: the reason for the map in each of the two cases.
        whiten: whether public records choose directions.
        distortion: the distortion of public images, or "none".
        clip: the clip bound.
        cold_step: the learning rate times the clip bound at which plain SGD is stable without a whitening.
    """

    name: str
    features: tuple[str, str]
    why: tuple[str, str]
    whiten: bool = True
    distortion: str = "none"
    clip: float = 0.5
    cold_step: float = 4.0


WAVELETS = "wavelets need no training"
KINDS = {
    "handwriting": Kind(
        "handwriting",
        ("scattering", "scattering"),
        (f"handwriting: {WAVELETS}",) * 2,
        distortion="strokes",
        cold_step=28.0,
    ),
    "grey images": Kind(
        "grey images",
        ("scattering+patches", "scattering"),
        ("grey images: wavelets, and filters that are patches of the public images", f"grey images: {WAVELETS}"),
        distortion="objects",
        cold_step=28.0,
    ),
    "colour images": Kind(
        "colour images",
        ("patches", "scattering"),
        (
            "colour images: filters are patches of the public images",
            f"no public images to take patches of, or too small ones: {WAVELETS}",
        ),
        distortion="colour",
        cold_step=28.0,
    ),
    "table": Kind(
        "table",
        ("binned", "binned"),
        ("a table: numbers in bins of their declared ranges",) * 2,
        whiten=False,  # a public start lost on tables, and the whitening gained nothing
        clip=1.0,
    ),
    "tokens": Kind(
        "tokens",
        ("context", "context"),
        ("rows of tokens: the last tokens, and the last two and three of them together",) * 2,
        whiten=False,
        clip=1.0,
        cold_step=32.0,
    ),
    "rows": Kind(
        "rows",
        ("scaled", "scaled"),
        ("rows of numbers: the inputs themselves with norm one, and a constant in the place of a bias",) * 2,
    ),
}
"""Kinds of data by name."""


@dataclass(frozen=True)
class Choice:
    """The features of a recipe.

    Attributes:
        kind: the kind of data.
        features: the name of the feature map, as `gnomon.features.build` takes it.
        distortion: the distortion of public images, or "none".
        copies: copies of each public record.
        whiten: whether the features are whitened by those of the public records.
        start: whether training starts from a head that is trained on the public records.
        reasons: the choices in words.

    >>> choose("best", Facts((104,))).start
    False
    """

    kind: Kind
    features: str
    distortion: str
    copies: int
    whiten: bool
    start: bool
    reasons: tuple[Reason, ...]


def kind_of(facts: Facts, distortion: str = "none") -> Kind:
    """Return the kind of data that public facts describe.

    Args:
        facts: public facts about the records.
        distortion: the distortion that the user chose; "strokes" says that images show handwriting.

    >>> [kind_of(Facts(shape)).name for shape in ((1, 28, 28), (3, 32, 32), (104,))]
    ['grey images', 'colour images', 'rows']
    >>> kind_of(Facts((80,), tokens=68)).name, kind_of(Facts((2,), columns={"age": 0, "sex": 1})).name
    ('tokens', 'table')
    >>> kind_of(Facts((1, 28, 28)), "strokes").name
    'handwriting'
    """
    shape = facts.shape
    if facts.tokens:
        return KINDS["tokens"]
    if facts.columns:
        return KINDS["table"]
    if len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) >= LEAST_SIDE:
        if shape[0] == 3:
            return KINDS["colour images"]
        return KINDS["handwriting" if distortion == "strokes" else "grey images"]
    return KINDS["rows"]


def choose(recipe: str, facts: Facts, *, distortion: str = "none", features: str | None = None) -> Choice:
    """Return the features that a recipe chooses.

    Args:
        recipe: "best", "cold" or "no-public".
        facts: public facts about the records, among them the public records.
        distortion: the distortion of public images, if the user chose one.
        features: the feature map, if the user chose one.

    Raises:
        SettingError: the recipe needs public records, or there is no such recipe.

    >>> choose("best", Facts((1, 28, 28))).features, choose("best", Facts((104,))).features
    ('scattering', 'scaled')
    """
    if recipe not in RECIPES:
        raise SettingError("recipe", recipe, f"one of {', '.join(RECIPES)}")
    public = 0 if facts.public is None else len(facts.public)
    if recipe == "cold" and not public:
        raise SettingError("recipe", recipe, "best or no-public: there are no public records")
    kind, given = kind_of(facts, distortion), features is not None
    uses_public = bool(public) and recipe != "no-public" and (kind.whiten or given)
    patched = uses_public and (len(facts.shape) != 3 or min(facts.shape[1:]) >= LEAST_PATCHED_SIDE)
    chosen, why = features or kind.features[not patched], kind.why[not patched]
    reasons = [Reason("features", chosen, "chosen by the user" if given else why)]
    copies = COPIES if kind.distortion != "none" and uses_public else 1
    if copies > 1:
        known = distortion != "none"
        distortion = distortion if known else kind.distortion
        hint = (
            "" if known or kind.name != "grey images" else "; use strokes for handwriting, which has no mirror images"
        )
        few = f"{public} public images with small distortions show more directions than alone"
        reasons += [Reason("public-copies", str(copies), few), Reason("distortion", distortion, kind.name + hint)]
    if not uses_public:
        why = (
            "no public records"
            if not public or recipe == "no-public"
            else f"public records gain nothing on a {kind.name}"
        )
        reasons.append(Reason("warm-start", "none", f"{why}: training starts from zero, without whitening"))
    return Choice(
        kind,
        chosen,
        distortion if copies > 1 else "none",
        copies,
        uses_public,
        uses_public and recipe == "best",
        tuple(reasons),
    )
