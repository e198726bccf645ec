"""Where a private compressed method sketches: four sound forms of one published step."""

from __future__ import annotations

from dataclasses import dataclass

from gnomon.methods.routes import ClipThenSketch, ProjectThenClip, Route


@dataclass(frozen=True)
class Form:
    """Which vectors are sketched, and whether a sketch is scaled to the length of what it shows.

    >>> PUBLISHED_WHOLE_BATCH_NORMALISER.route.name
    'between clipping and noise'
    """

    name: str
    route: Route
    normalised: bool


CLIP_AFTER_SKETCH = Form("clip-after-sketch", ProjectThenClip(), False)
"""A: `u_i = clip(Phi g_i, C)`. Sensitivity C for every Phi; any sampling and accountant."""

PER_SAMPLE_NORMALISER = Form("per-sample-normaliser", ProjectThenClip(), True)
"""B: `u_i = clip(g_i, C)` in length, `Phi g_i` in direction. Sensitivity C for every Phi."""

LINEAR_SKETCH = Form("linear-sketch", ClipThenSketch(), False)
"""C: `Phi sum clip(g_i, C)`. The cheapest; exact accounting over the law of Phi for full batches, a bound otherwise."""

PUBLISHED_WHOLE_BATCH_NORMALISER = Form("published-whole-batch-normaliser", ClipThenSketch(), True)
"""D: `|S| Phi S / |Phi S|` for the clipped sum S, as published. The published sensitivity is false; noise here is
counted with the factor kappa, which makes it dearer than the other three. Kept for comparison with the paper."""

FORMS = {
    form.name: form
    for form in (CLIP_AFTER_SKETCH, PER_SAMPLE_NORMALISER, LINEAR_SKETCH, PUBLISHED_WHOLE_BATCH_NORMALISER)
}
"""The forms by the name that the command line uses."""
