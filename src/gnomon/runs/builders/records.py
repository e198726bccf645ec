"""Selects the private and public records that the settings of a run describe."""

from __future__ import annotations

import inspect

from gnomon.data import Source, Split, public_private
from gnomon.errors import SettingError
from gnomon.features.registry import reads_public
from gnomon.methods import METHODS
from gnomon.runs.config import TrainConfig
from gnomon.validate import whole


def undeclared_public(data: str, reader: str) -> SettingError:
    """Return the error for a user's file without public records.

    Args:
        data: the file, as the settings name it.
        reader: the method or setting that needs public records.

    >>> str(undeclared_public("npz:own.npz", "pcdp"))[:61]
    'pcdp needs public records, and npz:own.npz declares none: put'
    """
    return SettingError.with_message(
        f"{reader} needs public records, and {data} declares none: put them into the arrays x_public and y_public of "
        "the file. They are NOT protected, so they are never drawn from your private records: a record drawn as "
        "public in one run could be counted as protected in another",
        name="public-records",
    )


def records(config: TrainConfig, source: Source) -> Split:
    """Return the private records to protect, and the public records if the settings use any.

    A user's own data are public only where the file declares it. From a benchmark, whose records are known to
    everybody, public records are drawn with the split seed.

    Raises:
        SettingError: there are not as many records, or public records are needed and the user's file declares none.

    >>> from gnomon.data import load
    >>> split = records(TrainConfig(method="pcdp", public_records=37), load("digits"))
    >>> len(split.private), len(split.public)
    (1400, 37)
    """
    if source.public is not None or is_own(config.data):
        return _declared(config, source)
    size, used = len(source.train), uses_public(config)
    public = public_count(config, source) if used else 0
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


def _declared(config: TrainConfig, source: Source) -> Split:
    """Return the private records of a source, and its declared public records if the settings use any."""
    none = source.train[:0]
    public = none
    if uses_public(config) or config.public_records:  # a number that has no effect is refused too
        count = public_count(config, source)
        public = source.public[:count] if source.public is not None and uses_public(config) else none
    if config.private_records is None:
        return Split(source.train, public)
    drawn = public_private(source.train, private=config.private_records, public=0, seed=config.split_seed)
    return Split(drawn.private, public)


def public_count(config: TrainConfig, source: Source) -> int:
    """Return the number of public records: all or the first of those that a file declares, or drawn from a benchmark.

    Raises:
        SettingError: the user's file declares no public records, or fewer than the settings say.

    >>> from gnomon.data import load
    >>> public_count(TrainConfig(), load("digits"))
    100
    """
    if source.public is None and is_own(config.data):
        reads = config.method if _method_reads_public(config) else "warm-start = public"
        if _features_read_public(config):
            reads = f"features = {config.features}" if config.whitening_directions is None else "whitening"
        raise undeclared_public(config.data, reads if uses_public(config) else "public-records")
    default = 100 if source.public is None else len(source.public)
    count = whole("public-records", default if config.public_records is None else config.public_records)
    if source.public is not None and count > len(source.public):
        raise SettingError("public-records", count, f"at most {len(source.public)}, the number of records in x_public")
    return count


def is_own(data: str) -> bool:
    """Return whether the data are a file of the user, not a benchmark whose size is public knowledge.

    >>> is_own("npz:patients.npz"), is_own("mnist")
    (True, False)
    """
    return data.startswith("npz:") or data.endswith(".npz")


def uses_public(config: TrainConfig) -> bool:
    """Return whether the method, the warm start or the features read public records.

    >>> uses_public(TrainConfig()), uses_public(TrainConfig(method="pdp"))
    (False, True)
    """
    return _method_reads_public(config) or config.warm_start == "public" or _features_read_public(config)


def has_public(config: TrainConfig, source: Source) -> bool:
    """Return whether there are public records: declared by a file, or drawn from a benchmark.

    >>> from gnomon.data import load
    >>> has_public(TrainConfig(), load("digits"))
    True
    """
    return source.public is not None or not is_own(config.data)


def declared_size(config: TrainConfig, source: Source) -> int:
    """Return the public number of private records: declared by the user, or that of the benchmark.

    Raises:
        SettingError: the data are the user's, and no number was declared.

    >>> from gnomon.data import load
    >>> declared_size(TrainConfig(), load("digits")), declared_size(TrainConfig(method="pcdp"), load("digits"))
    (1437, 1337)
    """
    if config.dataset_size is not None:
        return whole("dataset-size", config.dataset_size)
    if is_own(config.data):
        raise SettingError.with_message(
            "dataset-size is required for npz files: the number of records that you declare in public; it sets the "
            "sample rate",
            name="dataset-size",
        )
    drawn = public_count(config, source) if uses_public(config) and source.public is None else 0
    return config.private_records or len(source.train) - drawn


def _method_reads_public(config: TrainConfig) -> bool:
    maker = METHODS.get(config.method)
    return maker is not None and "public" in inspect.signature(maker).parameters


def _features_read_public(config: TrainConfig) -> bool:
    if config.features is None:
        return False
    return config.whitening_directions is not None or reads_public(config.features)
