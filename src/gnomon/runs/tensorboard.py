"""Metrics as TensorBoard event files, if the optional package is there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gnomon.errors import SettingError


class EventFiles:
    """Writes each record of metrics under its own names; unprotected ones keep their prefix.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     events = EventFiles(Path(place))
    ...     events({"step": 6, "epoch": 1.0, "epsilon": 0.5})
    ...     len(list(Path(place).glob("events.out.tfevents.*")))
    1
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  # optional
        except ImportError:
            raise SettingError(
                "tensorboard", True, "the package tensorboard as well: pip install -c constraints.txt '.[tensorboard]'"
            ) from None
        self._make, self._folder = SummaryWriter, folder
        self._writer: Any = None

    def __call__(self, record: Mapping[str, Any]) -> None:
        """One record; durable when this returns. The first one makes the file."""
        if self._writer is None:
            self._writer = self._make(str(self._folder))
        for name, value in record.items():
            if name != "step" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, int(record["step"]))
        self._writer.flush()
