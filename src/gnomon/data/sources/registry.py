"""The registry of data sets: load one by its name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from gnomon.data.sources.adult import adult
from gnomon.data.sources.arrays import LAYOUT, npz
from gnomon.data.sources.cifar import cifar10
from gnomon.data.sources.compas import compas
from gnomon.data.sources.digits import digits
from gnomon.data.sources.files import data_folder
from gnomon.data.sources.mnist import fashion_mnist, mnist
from gnomon.data.sources.shakespeare import shakespeare
from gnomon.data.sources.source import Source
from gnomon.errors import SettingError

_READERS: dict[str, Callable[[Path], Source]] = {
    "digits": digits,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "cifar10": cifar10,
    "adult": adult,
    "compas": compas,
    "shakespeare": shakespeare,
}
NAMES = tuple(_READERS)


def load(name: str, data_dir: str | os.PathLike[str] | None = None) -> Source:
    """Load a data set.

    Args:
        name: one of `NAMES`, or "npz:PATH" for your own arrays.
        data_dir: the folder of the official files; by default the folder in GNOMON_DATA, or ./data.

    Raises:
        SettingError: if the name is unknown.
        DataError: if a file is missing, damaged or in the wrong format.

    >>> source = load("digits")
    >>> len(source.train), len(source.test), source.classes, source.input_shape
    (1437, 360, 10, (1, 8, 8))
    """
    if isinstance(name, str) and (name.startswith("npz:") or name.endswith(".npz")):
        path = Path(name.removeprefix("npz:")).expanduser()
        if path.is_dir():  # also for an empty path
            raise SettingError("data", name, "npz:FILE, the path of one .npz file")
        return npz(path)
    if name not in _READERS and Path(str(name)).suffix:
        raise SettingError(
            "data", name, f"npz:FILE; {LAYOUT} (the section 'Your own data' of README.md shows how to convert CSV)"
        )
    if name not in _READERS:
        raise SettingError("data", name, f"one of {', '.join(NAMES)}, or npz:PATH for your own arrays")
    return _READERS[name](data_folder(data_dir))
