"""What tables and pictures of an experiment call things."""

from __future__ import annotations

import math

from gnomon.studies.reproduce.experiment import Experiment, ExperimentLine

WORDS = {
    "accuracy": "test accuracy (%)",
    "unprotected/train/accuracy": "training accuracy (%)",
    "unprotected/norms/mean": "mean norm of a record's gradient",
    "unprotected/incremental/mean": "beyond the bound / local step",
    "unprotected/spectrum": "eigenvalue",
    "unprotected/components": "magnitude of the component",
}
"""What measures are called on an axis."""


def spoken(axis: str) -> str:
    """A setting as words.

    >>> spoken("noise-multiplier")
    'noise multiplier'
    """
    return axis.replace("-", " ")


def words(experiment: Experiment) -> str:
    """What is drawn, for the axis of a picture."""
    name = experiment.draw or experiment.measure
    if name in WORDS:
        return WORDS[name]
    return f"{name} ({experiment.unit})" if experiment.unit else name


def accounted(experiment: Experiment) -> str:
    """How batches were drawn and epsilon was worked out.

    >>> from gnomon.studies.reproduce.files import read_experiment
    >>> accounted(read_experiment("pcdp-table2"))
    'Poisson, PLD'
    """
    every = [
        experiment.base.with_settings(line.settings | own)
        for line in experiment.lines
        for own in (line.at.values() if line.at else [{}])
    ]
    kinds = {f"{one.sampler.capitalize()}, {one.accountant.upper()}" for one in every}
    return kinds.pop() if len(kinds) == 1 else "as each line samples"


def head(experiment: Experiment) -> str:
    """What the numbers of a table are, with their unit: what all its lines measure, or what they have in common.

    >>> from gnomon.studies.reproduce.files import read_experiment
    >>> head(read_experiment("pcdp-table2")), head(read_experiment("dp-lsgd-figure1"))
    ('accuracy, %', 'beyond the bound / local step (unprotected)')
    """
    if _alike(experiment):
        name = experiment.measure_of(experiment.lines[0]) if experiment.lines else experiment.measure
        return f"{name}, {experiment.unit}" if experiment.unit else name
    return (_common(experiment) or "measured") + (" (unprotected)" if experiment.unprotected else "")


def named(experiment: Experiment, line: ExperimentLine) -> str:
    """A line; with what it measures where neither the head nor the others say so.

    >>> from gnomon.studies.reproduce.files import read_experiment
    >>> figure = read_experiment("dp-lsgd-figure1")
    >>> named(figure, figure.lines[1])
    'psi / eta, standard deviation'
    """
    return line.name if _alike(experiment) or _common(experiment) else f"{line.name} ({experiment.measure_of(line)})"


def three(value: float) -> str:
    """Three digits, also where the last is a zero.

    >>> three(80.0), three(0.00123)
    ('80.0', '0.00123')
    """
    return f"{value:#.3g}".rstrip(".")


def spread(value: float | None, mean: float) -> str:
    """A standard deviation behind its mean, with as many decimals; one run has none.

    >>> spread(1.54, 80.0), spread(0.02, 57.1), spread(0.0004, 0.0123), spread(None, 1.0)
    (' ± 1.5', ' ± 0.0', ' ± 0.0004', '')
    """
    return "" if value is None else f" ± {value:.{_decimals(mean)}f}"


def difference(measured: float, published: float) -> str:
    """Measured minus published, with as many decimals as three digits of both need.

    >>> difference(90.3, 91.91), difference(0.0125, 0.012), difference(math.nan, 1.0)
    ('-1.6', '+0.0005', '–')
    """
    if not math.isfinite(measured - published):
        return "–"
    return f"{measured - published:+.{max(map(_decimals, (measured, published)))}f}"


def _decimals(value: float) -> int:
    """How many decimals three digits of a number need."""
    return max(0, 2 - math.floor(math.log10(abs(value)))) if value and math.isfinite(value) else 0


def with_unit(experiment: Experiment, value: float) -> str:
    """A number as one would say it.

    >>> from gnomon.studies.reproduce.files import read_experiment
    >>> with_unit(read_experiment("pcdp-table2"), 90.31)
    '90.3 %'
    """
    return f"{value:.3g} {experiment.unit}".rstrip()


def _common(experiment: Experiment) -> str:
    """What lines with several measures have in common, such as the mean and the quantiles of one quantity."""
    return "" if experiment.measure == "accuracy" else WORDS.get(experiment.measure, "")


def _alike(experiment: Experiment) -> bool:
    return len({experiment.measure_of(line) for line in experiment.lines}) <= 1
