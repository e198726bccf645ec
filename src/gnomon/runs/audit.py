"""The Trainer to audit for the settings of a run."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from gnomon.audit.attack_data import Probe, probe_loss
from gnomon.data import Records, load
from gnomon.methods import METHODS
from gnomon.runs.builders import build_method, build_trainer, records
from gnomon.runs.config import TrainConfig
from gnomon.training import Trainer

PROBE = "probe"
"""The name of the probe among the models, and the default for audits."""

SIZE, PUBLIC, RANK = 64, 100, 16
"""Parameters of the probe, its public records, and the rank of a subspace unless the settings say otherwise."""


def trainer_to_audit(config: TrainConfig) -> tuple[Trainer, Any]:
    """The Trainer that the settings stand for, and records for its model; None for the probe.

    Noise, sampling, steps and delta are those of the run with these settings.

    >>> trainer, data = trainer_to_audit(TrainConfig(method="pcdp"))
    >>> trainer.method.describe(), data is None
    ('pcdp: gradient, public eigenspace, rank 16, projected before clipping, flat clipping', True)
    """
    source = load(config.data, config.data_dir)
    probe = config.model in (None, PROBE)
    run = dataclasses.replace(config, model=None) if probe else config
    split = records(run, source)
    planned = build_trainer(run, source, split.public, progress=False)
    if not probe:
        return planned, split.private
    return _on_probe(run, planned), None


def _on_probe(config: TrainConfig, planned: Trainer) -> Trainer:
    public = Records(torch.randn(PUBLIC, SIZE, generator=torch.Generator().manual_seed(0)), torch.zeros(PUBLIC))
    if config.rank is None and "rank" in METHODS[config.method].__annotations__:
        config = dataclasses.replace(config, rank=RANK)
    model = Probe(SIZE)
    claimed = planned.mechanism
    mechanism = dataclasses.replace(
        claimed, method=build_method(config, public), steps=claimed.last_step, max_steps=None
    )
    return Trainer(
        model,
        probe_loss,
        torch.optim.SGD(model.parameters(), lr=1.0),
        mechanism=mechanism,
        max_physical_batch_size=planned.sampling.max_physical_batch_size,
        noise=planned.noise,
        progress=False,
    )
