"""The records that settings stand for: private, and public if any."""

from __future__ import annotations

import inspect

from gnomon.data import Source, Split, public_private
from gnomon.errors import SettingError
from gnomon.methods import METHODS
from gnomon.runs.config import TrainConfig
from gnomon.validate import whole


def records(config: TrainConfig, source: Source) -> Split:
    """The records to protect, and public ones if the settings use any.

    >>> from gnomon.data import load
    >>> split = records(TrainConfig(method="pcdp", public=37), load("digits"))
    >>> len(split.private), len(split.public)
    (1400, 37)
    """
    size, used = len(source.train), uses_public(config)
    public = public_count(config) if used else 0
    if config.private is None and public == 0:
        return Split(source.train, source.train[:0])
    if public >= size:
        raise SettingError("public", public, f"fewer than the {size} records of the data set")
    private = config.private if config.private is not None else size - public
    if not used and config.public and private + config.public <= size:
        public = config.public  # set aside and not read, so that all methods of a comparison protect the same records
    split = public_private(source.train, private=private, public=public, seed=config.split_seed)
    return split if used else Split(split.private, source.train[:0])


def public_count(config: TrainConfig) -> int:
    """How many records count as public. Nobody's own data become public unasked."""
    if config.public is None and is_own(config.data):
        raise SettingError("public", None, "how many of your records are public; they will NOT be protected")
    return whole("public", 100 if config.public is None else config.public)


def is_own(data: str) -> bool:
    """Whether the data are the user's, not a benchmark whose size everybody knows.

    >>> is_own("npz:patients.npz"), is_own("mnist")
    (True, False)
    """
    return data.startswith("npz:") or data.endswith(".npz")


def uses_public(config: TrainConfig) -> bool:
    """Whether the settings need public records.

    >>> uses_public(TrainConfig()), uses_public(TrainConfig(method="pdp"))
    (False, True)
    """
    maker = METHODS.get(config.method)
    asks = maker is not None and "public" in inspect.signature(maker).parameters
    return asks or config.warm_start == "public"
