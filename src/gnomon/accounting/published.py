"""Noise formulas as papers print them: to compare with, never to rely on."""

from __future__ import annotations

import math
import warnings

from gnomon import validate


def published_noise(
    *, lipschitz: float, records: int, steps: int, epsilon: float, delta: float, batch_size: int | None = None
) -> float:
    """The standard deviation that Huang, Lei and Kaban (2023) print for DP-CompGD, or for batches with `batch_size`.

    It is added to the averaged, normalised sketch. It comes with a warning: the sensitivity behind it is false, and the
    mini-batch formula is garbled in print and re-derived here. Use `noise_multiplier` for a guarantee.

    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     round(published_noise(lipschitz=1.0, records=1000, steps=100, epsilon=1.0, delta=1e-5), 4)
    0.1919
    """
    reach = validate.positive("lipschitz", lipschitz)
    n, t = validate.whole("records", records), validate.whole("steps", steps)
    eps, delta = validate.positive("epsilon", epsilon), validate.probability("delta", delta)
    warnings.warn(
        "published_noise is no guarantee: the published sensitivity 2L/n of the whole-batch normaliser is false "
        "(one record can move it by up to 2L); use gnomon.accounting.noise_multiplier instead",
        stacklevel=2,
    )
    variance = 32 * reach**2 * t * math.log(1 / delta) / (n * eps) ** 2
    if batch_size is not None:
        share = t * validate.whole("batch_size", batch_size) / (delta * n)
        variance *= 8 * math.log(2.5 * share)
    return math.sqrt(variance)
