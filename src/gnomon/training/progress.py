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
"""What the bar says of an epoch beside epsilon; an asterisk marks what is not protected."""


class Bar(tqdm):  # type: ignore[type-arg]
    """A bar of steps that shows the last epoch's metrics.

    >>> with Bar("dp-sgd", total=2, done=0, visible=False) as bar:
    ...     bar.tell({"epsilon": 1.0, "step": 2})
    """

    def __init__(self, name: str, *, total: int, done: int, visible: bool) -> None:
        super().__init__(total=total, initial=done, unit="step", disable=not visible, dynamic_ncols=True, desc=name)

    def tell(self, record: Metrics) -> None:
        """Show what an epoch came to."""
        found: dict[str, Any] = {short: f"{record[name]:.3f}" for name, short in SHOWN.items() if name in record}
        if "epsilon" in record:
            found["epsilon"] = digits(record["epsilon"])
        self.set_postfix(found)
