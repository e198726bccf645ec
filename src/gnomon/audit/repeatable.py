"""Models without masks: an audit compares sums with noise off, and chance must not tell them apart."""

from __future__ import annotations

import copy

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

OFF = (
    "dropout was off in the audited copies: its masks are drawn without a look at the records, and clipping comes "
    "after them, but they were not audited"
)


def without_dropout(model: nn.Module) -> tuple[nn.Module, bool]:
    """A copy of a model that draws no masks in training, and whether the model does.

    Only probabilities are set to zero: the modules stay in training mode, so that nothing else changes.

    >>> still, drew = without_dropout(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)))
    >>> still[1].p, still[1].training, drew
    (0.0, True, True)
    """
    copied, drew = copy.deepcopy(model), False
    for module in copied.modules():
        name = "p" if isinstance(module, _DropoutNd) else "dropout"
        if isinstance(getattr(module, name, None), float) and getattr(module, name) > 0:
            setattr(module, name, 0.0)
            drew = True
        if isinstance(module, nn.RReLU):
            module.lower = module.upper = (module.lower + module.upper) / 2
            drew = True
    return copied, drew
