"""Hashed counts of the n-grams of a text."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gnomon.errors import DataError, SettingError
from gnomon.features.feature_map import FeatureMap, unit_norm
from gnomon.validate import whole

WORD = re.compile(r"\w+")

SIGN_BIT = 1 << 31
"""The bit of the hash that gives the sign; the others give the position."""


class HashedNgrams(FeatureMap):
    """Signed counts of n-grams at hashed positions, with unit norm; nothing is fitted, and there is no vocabulary.

    The hash is CRC-32 of the n-gram in UTF-8, which is the same on every machine. A random sign for each n-gram makes
    collisions cancel on average ("Feature Hashing for Large Scale Multitask Learning", Weinberger et al., 2009).

    Args:
        dimension: the number of positions.
        n: the shortest and the longest n-gram.
        unit: "word" for words in lower case, "character" for characters as they are. Rows of a token tensor are
            sequences of tokens.
        padding: the token that fills up the rows of a token tensor and is not counted.
        sublinear: whether an n-gram that occurs c times counts log(1 + c) instead of c.

    Raises:
        SettingError: the settings are not as described.

    >>> ngrams = HashedNgrams(1024)
    >>> features = ngrams(["the cat sat", "The cat sat!", "a dog"])
    >>> features.shape, round(float(features[0] @ features[1]), 4), round(float(features[0] @ features[2]), 4)
    (torch.Size([3, 1024]), 1.0, 0.0)
    >>> ngrams(torch.tensor([[5, 7, 0], [5, 7, 9]])).shape
    torch.Size([2, 1024])
    """

    def __init__(
        self,
        dimension: int,
        n: tuple[int, int] = (1, 2),
        *,
        unit: str = "word",
        padding: int | None = None,
        sublinear: bool = False,
    ) -> None:
        dimension = whole("dimension", dimension, least=2)
        if not isinstance(n, Sequence) or len(n) != 2 or not whole("n", n[0]) <= whole("n", n[1]):
            raise SettingError("n", n, "the shortest and the longest n-gram, such as (1, 2)")
        if unit not in ("word", "character"):
            raise SettingError("unit", unit, "'word' or 'character'")
        super().__init__(
            f"hashed {unit} n-grams, n = {n[0]} to {n[1]}, {dimension} positions",
            dimension,
            settings={
                "dimension": dimension,
                "n": list(n),
                "unit": unit,
                "padding": padding,
                "sublinear": bool(sublinear),
            },
        )
        self.n, self.unit, self.padding, self.sublinear = n, unit, padding, sublinear
        self.register_buffer("_place", torch.zeros(0), persistent=False)  # knows the device

    def features(self, inputs: Any) -> Tensor:
        """Return the signed counts of each text or row of tokens, with unit norm."""
        result = torch.zeros(len(inputs), self.settings["dimension"])
        for row, units in enumerate(self._sequences(inputs)):
            counts: dict[bytes, int] = {}
            for ngram in self._ngrams(units):
                counts[ngram] = counts.get(ngram, 0) + 1
            hashes = torch.tensor([zlib.crc32(ngram) for ngram in counts], dtype=torch.int64)
            values = torch.tensor(list(counts.values()), dtype=torch.float32)
            values = values.log1p() if self.sublinear else values
            signs = torch.where(hashes & SIGN_BIT > 0, -1.0, 1.0)
            result[row].index_add_(0, (hashes & ~SIGN_BIT) % len(result[row]), signs * values)
        return unit_norm(result).to(self.device)

    def _sequences(self, inputs: Any) -> Iterator[list[str]]:
        if isinstance(inputs, Tensor):
            if inputs.ndim != 2 or inputs.is_floating_point():
                problem = f"has shape {tuple(inputs.shape)} and type {inputs.dtype}"
                raise DataError("a batch of tokens", problem, "give whole numbers of shape (B, T), or a list of texts")
            for tokens in inputs.tolist():
                yield [str(token) for token in tokens if token != self.padding]
            return
        for text in inputs:
            if not isinstance(text, str):
                raise DataError("a batch of texts", f"has a {type(text).__name__}", "give a list of str")
            yield WORD.findall(text.lower()) if self.unit == "word" else list(text)

    def _ngrams(self, units: list[str]) -> Iterator[bytes]:
        for length in range(self.n[0], self.n[1] + 1):
            for start in range(len(units) - length + 1):
                yield "\x1f".join(units[start : start + length]).encode("utf-8", "surrogatepass")
