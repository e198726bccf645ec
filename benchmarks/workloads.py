"""Models and batches for the timing of steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gnomon.models import paper_cnn


@dataclass(frozen=True)
class Workload:
    """A model, a batch for it, and the number of timed steps."""

    name: str
    model: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, Tensor]]
    repeats: int


class Transformer(nn.Module):
    """A Transformer encoder with a language-model head; by default 4 layers of width 256, 3.4 million parameters."""

    def __init__(self, vocabulary: int = 512, width: int = 256, layers: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.embed(x)))


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each sample; for sequences, the mean over positions."""
    if outputs.dim() == 2:
        return F.cross_entropy(outputs, targets, reduction="none")
    return F.cross_entropy(outputs.transpose(1, 2), targets, reduction="none").mean(1)


WORKLOADS = (
    Workload(
        "CNN 26k, B = 250",
        lambda: paper_cnn((1, 28, 28), 10, channels_last=False),
        lambda: (torch.randn(250, 1, 28, 28), torch.randint(0, 10, (250,))),
        30,
    ),
    Workload(
        "MLP 784-1024-1024-10, B = 256",
        lambda: nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)),
        lambda: (torch.randn(256, 784), torch.randint(0, 10, (256,))),
        30,
    ),
    Workload(
        "Transformer 3.4M, T = 64, B = 32",
        Transformer,
        lambda: (torch.randint(0, 512, (32, 64)), torch.randint(0, 512, (32, 64))),
        8,
    ),
)
