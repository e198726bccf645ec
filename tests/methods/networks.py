"""Small networks of three kinds, with private and public records for each."""

from __future__ import annotations

import torch
from torch import nn

D = torch.float64


class Block(nn.Module):
    """A transformer block on 5 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.layer(self.embed(x)).mean(1))


MODELS = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3)),
        lambda n: torch.randn(n, 6, dtype=D),
    ),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Conv2d(4, 4, 2), nn.Flatten(), nn.Linear(16, 3)
        ),
        lambda n: torch.randn(n, 1, 6, 6, dtype=D),
    ),
    "transformer": (Block, lambda n: torch.randint(0, 9, (n, 5))),
}
"""Each model, and a function that draws inputs for it."""


def setting(name: str, private: int = 12, public: int = 9):
    """Return a model in float64, private records and public records."""
    torch.manual_seed(0)
    make, draw = MODELS[name]
    model = make().to(D)
    targets = lambda n: torch.randint(0, 3, (n,))
    return model, (draw(private), targets(private)), (draw(public), targets(public))
