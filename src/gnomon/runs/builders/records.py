"""Selects the private and public records that the settings of a run describe."""

from __future__ import annotations

import inspect

from gnomon.data import Source, Split, public_private
from gnomon.errors import SettingError
from gnomon.methods import METHODS
from gnomon.runs.config import TrainConfig
from gnomon.validate import whole


def records(config: TrainConfig, source: Source) -> Split:
    """Return the private records to protect, and the public records if the settings use any.

    >>> from gnomon.data import load
    >>> split = records(TrainConfig(method="pcdp", public_records=37), load("digits"))
    >>> len(split.private), len(split.public)
    (1400, 37)
    """
    size, used = len(source.train), uses_public(config)
    public = public_count(config) if used else 0
    if config.private_records is None and public == 0:
        return Split(source.train, source.train[:0])
    if public >= size:
        raise SettingError("public-records", public, f"fewer than the {size} records of the data set")
    private = config.private_records if config.private_records is not None else size - public
    if not used and config.public_records and private + config.public_records <= size:
        # set aside although not read, so that all methods of a comparison protect the same private records
        public = config.public_records
    split = public_private(source.train, private=private, public=public, seed=config.split_seed)
    return split if used else Split(split.private, source.train[:0])


def public_count(config: TrainConfig) -> int:
    """Return the number of public records. Users' own data become public only if the settings say how many.

    >>> public_count(TrainConfig())
    100
    """
    if config.public_records is None and is_own(config.data):
        raise SettingError.with_message(
            "public-records is required for npz files: the number of your records that are public; they will NOT be "
            "protected",
            name="public-records",
        )
    return whole("public-records", 100 if config.public_records is None else config.public_records)


def is_own(data: str) -> bool:
    """Return whether the data are a file of the user, not a benchmark whose size is public knowledge.

    >>> is_own("npz:patients.npz"), is_own("mnist")
    (True, False)
    """
    return data.startswith("npz:") or data.endswith(".npz")


def uses_public(config: TrainConfig) -> bool:
    """Return whether the method or the warm start reads public records.

    >>> uses_public(TrainConfig()), uses_public(TrainConfig(method="pdp"))
    (False, True)
    """
    maker = METHODS.get(config.method)
    method_reads_public = maker is not None and "public" in inspect.signature(maker).parameters
    return method_reads_public or config.warm_start == "public"
