"""The end of a sequence of tokens as features, for the prediction of the next token."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gnomon.errors import DataError, SettingError
from gnomon.features.feature_map import FeatureMap, unit_norm
from gnomon.validate import positive, whole

MULTIPLIER, MODULUS = 1_000_003, 2**31 - 1
"""Constants of the polynomial hash of the last tokens; the products fit into 64 bits."""


class TokenContext(FeatureMap):
    """The last tokens of a sequence as indicators, and the last two and three of them together at hashed positions.

    Nothing is fitted: the hash is a polynomial modulo a prime, with a random-looking sign, so that collisions cancel
    on average ("Feature Hashing for Large Scale Multitask Learning", Weinberger et al., 2009).

    Args:
        vocabulary: the number of different tokens, which are 0 to vocabulary - 1.
        last: the number of last tokens with indicators.
        decay: the factor by which the indicators of each earlier token are smaller.
        positions: the number of hashed positions for pairs, and for triples.

    Raises:
        SettingError: a setting is out of range.

    >>> context = TokenContext(vocabulary=5, positions=16)
    >>> features = context(torch.tensor([[0, 1, 2, 3], [4, 1, 2, 3], [0, 1, 2, 4]]))
    >>> features.shape, bool((features[0] == features[1]).all()), bool((features[0] == features[2]).all())
    (torch.Size([3, 47]), True, False)
    """

    def __init__(self, vocabulary: int, last: int = 3, decay: float = 0.5, positions: int = 1024) -> None:
        vocabulary, last = whole("vocabulary", vocabulary, least=2), whole("last", last, least=3)
        positions, decay = whole("positions", positions), positive("decay", decay)
        if decay > 1:
            raise SettingError("decay", decay, "at most 1")
        super().__init__(
            f"last {last} of {vocabulary} tokens, pairs and triples at {positions} hashed positions",
            last * vocabulary + 2 * positions,
            settings={"vocabulary": vocabulary, "last": last, "decay": decay, "positions": positions},
        )
        self.vocabulary, self.last, self.decay, self.positions = vocabulary, last, decay, positions
        self.register_buffer("_place", torch.zeros(0), persistent=False)  # knows the device

    def features(self, inputs: Tensor) -> Tensor:
        """Return the indicators and hashed pairs and triples of each sequence, with unit norm."""
        if inputs.ndim != 2 or inputs.shape[1] < self.last:
            problem = f"has shape {tuple(inputs.shape)}"
            raise DataError("a batch of tokens", problem, f"give whole numbers of shape (B, T) with T >= {self.last}")
        tokens = inputs.long()
        if not bool(((tokens == inputs) & (tokens >= 0) & (tokens < self.vocabulary)).all()):
            raise DataError("a batch of tokens", "has other numbers", f"tokens are 0, 1, ... {self.vocabulary - 1}")
        parts = [
            self.decay**back * F.one_hot(tokens[:, -1 - back], self.vocabulary).float() for back in range(self.last)
        ]
        parts += [self._hashed(tokens, 2), 0.7 * self._hashed(tokens, 3)]
        return unit_norm(torch.cat(parts, 1))

    def _hashed(self, tokens: Tensor, count: int) -> Tensor:
        """Return a sign at the position of the last `count` tokens together, (B, positions)."""
        key = torch.full((len(tokens),), count, device=tokens.device)
        for back in range(count):
            key = (key * MULTIPLIER + tokens[:, -1 - back] + 1) % MODULUS
        result = torch.zeros(len(tokens), self.positions, device=tokens.device)
        signs = torch.where(key // self.positions % 2 == 0, 1.0, -1.0)
        return result.scatter_(1, (key % self.positions).unsqueeze(1), signs.unsqueeze(1))
