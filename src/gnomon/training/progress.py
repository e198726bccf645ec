"""The progress bar of a run."""

from __future__ import annotations

from typing import Any

from tqdm.auto import tqdm

from gnomon.accounting import digits
from gnomon.training.metrics import Metrics

SHOWN = {
    "unprotected/loss": "loss*",
    "validation/accuracy": "accuracy",
    "unprotected/validation/accuracy": "accuracy*",
}
"""The metrics shown beside epsilon; an asterisk marks those that are not protected."""


class Bar(tqdm):  # type: ignore[type-arg]
    """A progress bar over steps that shows the metrics of the last epoch.

    >>> with Bar("dp-sgd", total=2, done=0, visible=False) as bar:
    ...     bar.show({"epsilon": 1.0, "step": 2})
    """

    def __init__(self, name: str, *, total: int, done: int, visible: bool) -> None:
        super().__init__(total=total, initial=done, unit="step", disable=not visible, dynamic_ncols=True, desc=name)

    def show(self, metrics: Metrics) -> None:
        """Show the metrics of an epoch."""
        shown: dict[str, Any] = {short: f"{metrics[name]:.3f}" for name, short in SHOWN.items() if name in metrics}
        if "epsilon" in metrics:
            shown["epsilon"] = digits(metrics["epsilon"])
        self.set_postfix(shown)
