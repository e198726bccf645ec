"""Whether a clip rule treats each sample by itself."""

from __future__ import annotations

import torch
from torch import Tensor

from gnomon.clipping import ClipRule
from gnomon.training.checks.model import NotPrivate

MADE_UP = 8
"""How many samples a rule is tried on."""


def refuse_mixing_rule(rule: ClipRule, blocks: int, bound: float, device: torch.device | None = None) -> None:
    """Refuses a clip rule whose weight for a sample depends on the others of its batch, or on earlier batches.

    The norms are made up, a few a thousand times shorter or longer than the bound; `blocks` is how many a sample has.

    >>> from gnomon.clipping import Flat
    >>> refuse_mixing_rule(Flat(), blocks=2, bound=1.0)
    """
    draw = torch.Generator().manual_seed(0)
    spread = 10.0 ** (6 * torch.rand(MADE_UP, blocks, generator=draw, dtype=torch.float64) - 3)
    norms, losses = (spread * bound).to(device), 4 * torch.rand(MADE_UP, generator=draw).to(device)

    def weights(chosen: Tensor) -> Tensor:
        return rule.for_losses(losses[chosen]).weights(norms[chosen], bound).double()

    everybody = torch.arange(MADE_UP, device=norms.device)
    whole = weights(everybody)
    for chosen in (everybody[:1], everybody[2:5], everybody.flip(0)):
        if not torch.allclose(weights(chosen), whole[chosen], rtol=1e-5, atol=0, equal_nan=True):
            raise NotPrivate(
                f"clip rule '{rule.name}' gives a sample another weight when others are in its batch, or came before "
                "it: no clip bound holds; let its weight depend on that sample's norms and loss alone"
            )
