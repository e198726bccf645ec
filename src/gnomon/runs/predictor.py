"""The model of a finished run, from its folder alone: the feature map, if it has one, and the trained weights."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from gnomon import models
from gnomon.data import Records, Source
from gnomon.data.sources.columns import Column
from gnomon.errors import DataError
from gnomon.features import Facts, pipeline
from gnomon.runs.builders.map_files import restore_map, stored_public
from gnomon.runs.config import TrainConfig, read_yaml

FACTS = "model.json"
"""File of a run folder that describes the inputs and the outputs of its model."""


def model_facts(source: Source, raw: Records) -> str:
    """Return what the inputs and outputs of a model are, as JSON.

    Args:
        source: the data set.
        raw: its private records before any feature map; only their shape and type are read.

    >>> from gnomon.data import load
    >>> digits = load("digits")
    >>> print(model_facts(digits, digits.train))
    {"input_shape": [1, 8, 8], "classes": 10, "columns": {}, "tokens": 0}
    """
    columns = {name: [column.first, list(column.values)] for name, column in source.columns.items()}
    shape = list(raw.inputs.shape[1:])
    return json.dumps({"input_shape": shape, "classes": source.classes, "columns": columns, "tokens": source.tokens})


def load_predictor(folder: Path | str) -> nn.Module:
    """Return the trained model of a run in evaluation mode: from inputs as the data set gives them to scores.

    For a run with a feature map, the map is made from the settings and the files in the folder.

    Args:
        folder: the folder of a run of `gnomon train`.

    Raises:
        DataError: a file of the run is missing or damaged.

    >>> import tempfile
    >>> from gnomon.data import load
    >>> from gnomon.runs.train import train
    >>> digits = load("digits")
    >>> with tempfile.TemporaryDirectory() as place:
    ...     run = train(TrainConfig(recipe="best", insecure_noise_seed=0), Path(place) / "run", progress=False)
    ...     predictor = load_predictor(run.folder)
    >>> scores = predictor(digits.test.inputs)
    >>> bool((scores.argmax(1) == digits.test.targets).float().mean() > 0.8)
    True
    """
    folder = Path(folder)
    config = TrainConfig.from_dict(read_yaml(folder / "config.yaml"))
    path = folder / "model.safetensors"
    try:
        facts = json.loads((folder / FACTS).read_text())
        shape, classes, tokens = tuple(facts["input_shape"]), int(facts["classes"]), int(facts["tokens"])
        columns = {name: Column(first, tuple(values)) for name, (first, values) in facts["columns"].items()}
        weights = load_file(path)
    except FileNotFoundError as error:
        missing = folder / (FACTS if FACTS in str(error) else path.name)
        raise DataError(missing, "is missing", "give the folder of a training run that has finished") from None
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DataError(folder, f"cannot be read ({error})", "restore the files of the run, or run it again") from None
    if config.features is None:
        name = config.model or ("linear" if config.constraint else models.model_for_shape(shape))
        return _with_weights(models.build(name, shape, classes), weights, path)
    features = pipeline(
        config.features,
        Facts(shape, stored_public(folder), columns, tokens, config.seed),
        copies=config.public_copies,
        distortion=config.distortion,
        progress=False,
    )
    if config.whitening_directions is not None:
        features = features.whitened(config.whitening_directions, config.whitening_lam)
    feature_map = features.feature_map
    restore_map(feature_map, folder)
    if feature_map.dimension is None:
        feature_map(torch.zeros(1, *shape))
    head = models.build(config.model or "logistic", (math.prod(feature_map.output_shape),), classes)
    return nn.Sequential(feature_map, _with_weights(head, weights, path)).eval()


def _with_weights(model: nn.Module, weights: dict[str, torch.Tensor], path: Path) -> nn.Module:
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        problem = f"does not hold the model that config.yaml describes ({reason})"
        raise DataError(path, problem, "restore the files of the run") from None
    return model.eval()
