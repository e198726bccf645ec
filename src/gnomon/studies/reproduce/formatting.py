"""The text of numbers, axes and headings in the tables and figures of an experiment."""

from __future__ import annotations

import math

from gnomon.studies.reproduce.experiment import Experiment, ExperimentLine

QUANTITIES = {
    "accuracy": "test accuracy (%)",
    "unprotected/train/accuracy": "training accuracy (%)",
    "unprotected/norms/mean": "mean norm of per-sample gradients",
    "unprotected/incremental/mean": "norm beyond the clip bound / eta",
    "unprotected/spectrum": "eigenvalue",
    "unprotected/components": "magnitude of the component",
}
"""The axis label of each measured quantity."""


def setting_name(setting: str) -> str:
    """Return the name of a setting in words.

    >>> setting_name("noise-multiplier")
    'noise multiplier'
    """
    return setting.replace("-", " ")


def quantity_label(experiment: Experiment) -> str:
    """Return the label of the axis that shows the measured or drawn quantity."""
    name = experiment.draw or experiment.measure
    if name in QUANTITIES:
        return QUANTITIES[name]
    return f"{name} ({experiment.unit})" if experiment.unit else name


def accounting_words(experiment: Experiment) -> str:
    """Return the sampling and the accountant behind the epsilons of an experiment.

    >>> from gnomon.studies.reproduce.experiment_files import read_experiment
    >>> accounting_words(read_experiment("pcdp-table2"))
    'Poisson, PLD'
    """
    configs = [
        experiment.base.with_settings(line.settings | settings)
        for line in experiment.lines
        for settings in (line.at.values() if line.at else [{}])
    ]
    samplers = [config.sampler if config.recipe is None else "full" for config in configs]  # recipes use full batches
    kinds = {
        f"{sampler.capitalize()}, {config.accountant.upper()}"
        for sampler, config in zip(samplers, configs, strict=True)
    }
    return kinds.pop() if len(kinds) == 1 else "sampling of each line"


def table_heading(experiment: Experiment) -> str:
    """Return the quantity and the unit of the numbers in a table.

    >>> from gnomon.studies.reproduce.experiment_files import read_experiment
    >>> table_heading(read_experiment("pcdp-table2")), table_heading(read_experiment("dp-lsgd-figure1"))
    ('accuracy, %', 'norm beyond the clip bound / eta (unprotected)')
    """
    if _one_measure(experiment):
        name = experiment.measure_of(experiment.lines[0]) if experiment.lines else experiment.measure
        return f"{name}, {experiment.unit}" if experiment.unit else name
    return (_common_quantity(experiment) or "measured") + (" (unprotected)" if experiment.unprotected else "")


def line_heading(experiment: Experiment, line: ExperimentLine) -> str:
    """Return the name of a line, with its measured quantity if the heading of the table does not say it.

    >>> from gnomon.studies.reproduce.experiment_files import read_experiment
    >>> figure = read_experiment("dp-lsgd-figure1")
    >>> line_heading(figure, figure.lines[1])
    'psi / eta, standard deviation'
    """
    if _one_measure(experiment) or _common_quantity(experiment):
        return line.name
    return f"{line.name} ({experiment.measure_of(line)})"


def _common_quantity(experiment: Experiment) -> str:
    """Return the quantity of which the lines measure different statistics, such as its mean and its quantiles."""
    return "" if experiment.measure == "accuracy" else QUANTITIES.get(experiment.measure, "")


def _one_measure(experiment: Experiment) -> bool:
    return len({experiment.measure_of(line) for line in experiment.lines}) <= 1


def format_number(value: float) -> str:
    """Return a number with three significant digits, trailing zeros included.

    >>> format_number(80.0), format_number(0.00123)
    ('80.0', '0.00123')
    """
    return f"{value:#.3g}".rstrip(".")


def format_deviation(deviation: float | None, mean: float) -> str:
    """Return a standard deviation with as many decimals as its mean; an empty text for a single run.

    >>> format_deviation(1.54, 80.0), format_deviation(0.0004, 0.0123), format_deviation(None, 1.0)
    (' ± 1.5', ' ± 0.0004', '')
    """
    return "" if deviation is None else f" ± {deviation:.{_decimals(mean)}f}"


def format_difference(measured: float, published: float) -> str:
    """Return measured minus published, with as many decimals as three significant digits of both need.

    >>> format_difference(90.3, 91.91), format_difference(0.0125, 0.012), format_difference(math.nan, 1.0)
    ('-1.6', '+0.0005', '–')
    """
    if not math.isfinite(measured - published):
        return "–"
    return f"{measured - published:+.{max(map(_decimals, (measured, published)))}f}"


def _decimals(value: float) -> int:
    """Return the number of decimals that three significant digits of a number need."""
    return max(0, 2 - math.floor(math.log10(abs(value)))) if value and math.isfinite(value) else 0


def format_with_unit(experiment: Experiment, value: float) -> str:
    """Return a measured number with the unit of the experiment.

    >>> from gnomon.studies.reproduce.experiment_files import read_experiment
    >>> format_with_unit(read_experiment("pcdp-table2"), 90.31)
    '90.3 %'
    """
    return f"{value:.3g} {experiment.unit}".rstrip()
