"""The feature map of a run as files of its folder: the numbers that it computes with, and its public records."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save

from gnomon.data import Records
from gnomon.errors import DataError
from gnomon.features import FeatureMap

PUBLIC = "public.safetensors"
"""The public records from which the feature map of a run is made, as they were before the map."""

STATE = "feature-map.safetensors"
"""The buffers of the feature map. They are not computed again, because other libraries round differently."""

REMEDY = "restore the files of the run, or run it again"


def map_bytes(feature_map: FeatureMap) -> bytes:
    """Return the buffers of a feature map as the content of a file.

    >>> from gnomon.features import RandomFeatures
    >>> len(map_bytes(RandomFeatures([(0, 1)], features=4))) > 32
    True
    """
    return save({name: tensor.cpu().contiguous() for name, tensor in feature_map.state_dict().items()})


def restore_map(feature_map: FeatureMap, folder: Path) -> None:
    """Give a feature map the buffers that the folder of a run holds.

    Raises:
        DataError: the file is missing or damaged, or is that of another map.
    """
    path = folder / STATE
    try:
        stored = load_file(path)
    except FileNotFoundError:
        raise DataError(path, "is missing", REMEDY) from None
    except SafetensorError as error:
        raise DataError(path, f"cannot be read ({error})", REMEDY) from None
    try:
        feature_map.load_state_dict(stored)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise DataError(path, f"does not hold the map that config.yaml describes ({reason})", REMEDY) from None


def public_bytes(public: Records) -> bytes:
    """Return public records as the content of a file.

    >>> import torch
    >>> len(public_bytes(Records(torch.zeros(2, 3), torch.zeros(2)))) > 24
    True
    """
    return save({"inputs": public.inputs.contiguous(), "targets": public.targets.contiguous()})


def stored_public(folder: Path) -> Records | None:
    """Return the public records that the folder of a run holds, or None without any.

    Raises:
        DataError: the file is damaged.

    >>> stored_public(Path("nowhere")) is None
    True
    """
    path = folder / PUBLIC
    if not path.exists():
        return None
    try:
        stored = load_file(path)
        return Records(stored["inputs"], stored["targets"])
    except (SafetensorError, KeyError) as error:
        raise DataError(path, f"cannot be read ({error})", REMEDY) from None
