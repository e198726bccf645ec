"""Builds the Trainer that an audit attacks, from the settings of a run."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from gnomon.audit.attack_data import Probe, probe_loss
from gnomon.data import Records
from gnomon.methods import Views
from gnomon.runs.builders import build_method, build_trainer, prepare
from gnomon.runs.builders.method import methods_with
from gnomon.runs.config import TrainConfig
from gnomon.training import Trainer

PROBE = "probe"
"""Name of the probe among the models; the default model of an audit."""

SIZE, PUBLIC, RANK = 64, 100, 16
"""Number of parameters of the probe, number of its public records, and default rank of its subspace."""


def trainer_to_audit(config: TrainConfig) -> tuple[Trainer, Any]:
    """Return the Trainer to attack, and the records of its model or None for the probe.

    Noise, sampling, number of steps and delta are those of a training run with the same settings.

    >>> trainer, data = trainer_to_audit(TrainConfig(method="pcdp"))
    >>> trainer.method.describe(), data is None
    ('pcdp: gradient, public eigenspace, rank 16, projected before clipping, flat clipping', True)
    """
    probe = config.model in (None, PROBE)
    prepared = prepare(dataclasses.replace(config, model=None) if probe else config, progress=False)
    run, source, split = prepared.config, prepared.source, prepared.split
    planned = build_trainer(run, source, split.public, progress=False, feature_map=prepared.feature_map)
    if not probe:
        return planned, split.private
    return _on_probe(run, planned), None


def _on_probe(config: TrainConfig, planned: Trainer) -> Trainer:
    """Return a Trainer of the probe with the privacy settings of the planned run."""
    public = Records(torch.randn(PUBLIC, SIZE, generator=torch.Generator().manual_seed(0)), torch.zeros(PUBLIC))
    if config.rank is None and config.method in methods_with("rank"):
        config = dataclasses.replace(config, rank=RANK)
    model = Probe(SIZE)
    claimed = planned.mechanism
    method = build_method(dataclasses.replace(config, views=None, augmentation="none"), public)
    if isinstance(claimed.method.update, Views):  # records of the probe are not images: all their views are the same
        method = dataclasses.replace(method, update=Views(claimed.method.update.views))
    mechanism = dataclasses.replace(claimed, method=method, steps=claimed.last_step, target_epsilon=None)
    return Trainer(
        model,
        probe_loss,
        torch.optim.SGD(model.parameters(), lr=1.0),
        mechanism=mechanism,
        max_physical_batch_size=planned.sampling.max_physical_batch_size,
        noise=planned.noise,
        progress=False,
    )
