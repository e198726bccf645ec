"""Checks that a clip rule weighs each sample independently of the others."""

from __future__ import annotations

import torch
from torch import Tensor

from gnomon.clipping import ClipRule
from gnomon.training.checks.model import NotPrivate

SAMPLES = 8
"""The number of made-up samples on which a rule is tried."""


def refuse_mixing_rule(rule: ClipRule, blocks: int, bound: float, device: torch.device | None = None) -> None:
    """Refuse a clip rule whose weight for a sample depends on other samples of its batch, or on earlier batches.

    The rule is tried on made-up norms between a thousandth and a thousand times the bound.

    Args:
        rule: the clip rule.
        blocks: the number of blocks of one sample's update.
        bound: the clip bound C.
        device: the device of the norms.

    Raises:
        NotPrivate: the weight of a sample depends on the samples around it.

    >>> from gnomon.clipping import Flat
    >>> refuse_mixing_rule(Flat(), blocks=2, bound=1.0)
    """
    draw = torch.Generator().manual_seed(0)
    spread = 10.0 ** (6 * torch.rand(SAMPLES, blocks, generator=draw, dtype=torch.float64) - 3)
    norms, losses = (spread * bound).to(device), 4 * torch.rand(SAMPLES, generator=draw).to(device)

    def weights(chosen: Tensor) -> Tensor:
        return rule.for_losses(losses[chosen]).weights(norms[chosen], bound).double()

    everyone = torch.arange(SAMPLES, device=norms.device)
    whole = weights(everyone)
    for chosen in (everyone[:1], everyone[2:5], everyone.flip(0)):
        if not torch.allclose(weights(chosen), whole[chosen], rtol=1e-5, atol=0, equal_nan=True):
            raise NotPrivate(
                f"clip rule '{rule.name}' gives a sample another weight when other samples are in its batch, or came "
                "before it: no clip bound holds; let the weight depend on that sample's norms and loss alone"
            )
