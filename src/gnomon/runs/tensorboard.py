"""Writes metrics as TensorBoard event files; needs the optional package tensorboard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gnomon.errors import SettingError


class EventFiles:
    """Writes the metrics of a run to event files. Unprotected metrics keep their prefix.

    Raises:
        SettingError: the package tensorboard is not installed.

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
            raise SettingError.with_message(
                "tensorboard needs the package tensorboard: pip install -c constraints.txt '.[tensorboard]'",
                name="tensorboard",
                value=True,
            ) from None
        self._writer_class, self._folder = SummaryWriter, folder
        self._writer: Any = None

    def __call__(self, record: Mapping[str, Any]) -> None:
        """Write one record and flush it to disk. The file is created with the first record."""
        if self._writer is None:
            self._writer = self._writer_class(str(self._folder))
        for name, value in record.items():
            if name != "step" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, int(record["step"]))
        self._writer.flush()
