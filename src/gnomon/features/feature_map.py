"""Feature maps: fixed functions of one record, with a declared origin of their statistics."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor, nn

from gnomon.data.fingerprint import FINGERPRINT_BYTES, content_digest, fingerprints
from gnomon.data.records import Records
from gnomon.errors import SettingError
from gnomon.text import counted

VERSION = 1
"""Version of the maps' formulas. It enters the keys of cached features: raise it when a map computes other numbers."""

SMALLEST_NORM = 1e-6
"""Features with a smaller norm are divided by this number, so that a feature of zeros stays zero."""


@dataclass(frozen=True)
class Origin:
    """Where the statistics of a feature map came from: nowhere, constants that somebody declared, or public records.

    Args:
        constants: what the user declared about constants, one sentence part each, such as "trained on ImageNet".
        fingerprints: the fingerprints of the public records.

    >>> Origin()
    Origin(kind='none')
    >>> public = Origin.public(torch.eye(3))
    >>> public.kind, public.records, len(public.digest)
    ('public records', 3, 16)
    >>> (public | Origin(constants=("trained on ImageNet",))).sentence()
    'trained on ImageNet; statistics of 3 public records (digest d75ed6ff0c22d69b)'
    """

    constants: tuple[str, ...] = field(default=(), repr=False)
    fingerprints: frozenset[bytes] = field(default=frozenset(), repr=False)

    @classmethod
    def public(cls, records: Records | Tensor | Iterable[str]) -> Self:
        """Return the origin of statistics of public records or texts; bytes count as their values over 255."""
        return cls(fingerprints=frozenset(record_fingerprints(records)))

    @property
    def kind(self) -> str:
        """Either "none", "constants" or "public records"."""
        return "public records" if self.fingerprints else "constants" if self.constants else "none"

    @property
    def records(self) -> int:
        """The number of different public records."""
        return len(self.fingerprints)

    @property
    def digest(self) -> str:
        """A digest of the public records in any order, 16 hexadecimal digits; empty without public records."""
        if not self.fingerprints:
            return ""
        return hashlib.blake2b(b"".join(sorted(self.fingerprints)), digest_size=8).hexdigest()

    def sentence(self) -> str:
        """Return the origin in words, for a privacy statement."""
        parts = list(self.constants)
        if self.fingerprints:
            parts.append(f"statistics of {counted(self.records, 'public record')} (digest {self.digest})")
        return "; ".join(parts) or "no statistics of any records"

    def __or__(self, other: Origin) -> Origin:
        constants = tuple(dict.fromkeys(self.constants + other.constants))
        return Origin(constants, self.fingerprints | other.fingerprints)

    def __repr__(self) -> str:
        digest = f", records={self.records}, digest={self.digest!r}" if self.fingerprints else ""
        constants = f", constants={self.constants!r}" if self.constants else ""
        return f"Origin(kind={self.kind!r}{constants}{digest})"


class FeatureMap(nn.Module):
    """A fixed function of one record: (B, ...) inputs become (B, d) features in float32.

    A map has no trainable parameters, always is in evaluation mode, and maps each record by itself, so that features
    of private records cost no privacy budget. A subclass computes `features(inputs)`, keeps what it computes with in
    buffers, and passes what identifies it to the constructor.

    Args:
        name: the name of the map with its main settings, for privacy statements.
        dimension: the number of features of a record; None if only a first batch can tell.
        origin: where the statistics of the map came from.
        settings: everything besides buffers that determines the features, as plain numbers, strings and lists.

    >>> class Squares(FeatureMap):
    ...     def __init__(self, columns: int) -> None:
    ...         super().__init__(f"squares of {columns} columns", columns)
    ...
    ...     def features(self, inputs: Tensor) -> Tensor:
    ...         return inputs**2
    >>> squares = Squares(2)
    >>> squares(torch.tensor([[1, 2], [3, 4]]))
    tensor([[ 1.,  4.],
            [ 9., 16.]])
    >>> squares.description
    'Feature map: squares of 2 columns (no statistics of any records).'
    """

    grid_cells: int = 1
    """The number of cells of an image whose features are those of the same channels; they are one after another."""

    def __init__(
        self,
        name: str,
        dimension: int | None,
        *,
        origin: Origin | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self.origin = origin or Origin()
        self.settings = dict(settings or {})
        self._dimension = dimension
        self.eval()

    def features(self, inputs: Any) -> Tensor:
        """Return the features of each record, (B, ...)."""
        raise NotImplementedError(f"{type(self).__name__} does not define features(inputs)")

    @torch.no_grad()
    def forward(self, inputs: Any) -> Tensor:
        """Return the features of each record, (B, d) in float32."""
        if not len(inputs):
            return torch.zeros(0, self._dimension or 0, device=self.device)
        features = self.features(inputs)
        features = features.reshape(len(features), -1)
        if self._dimension is None:
            self._dimension = features.shape[1]
        if len(features) != len(inputs) or features.shape[1] != self._dimension:
            raise SettingError(
                "feature_map",
                f"{self.name}, which returned {tuple(features.shape)} for {counted(len(inputs), 'record')}",
                f"a map that returns {self._dimension} features for each record",
            )
        return features.float()

    @property
    def dimension(self) -> int | None:
        """The number of features of a record; None before the first batch of a map that cannot tell."""
        return self._dimension

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the features of one record, (d,); empty while d is not known."""
        return () if self._dimension is None else (self._dimension,)

    @property
    def description(self) -> str:
        """One sentence for a privacy statement: the map, and where its statistics came from."""
        return f"Feature map: {self.name} ({self.origin.sentence()})."

    @property
    def device(self) -> torch.device:
        """The device of the buffers; the CPU for a map without buffers."""
        tensor = next(iter(self.buffers()), next(iter(self.parameters()), None))
        return torch.device("cpu") if tensor is None else tensor.device

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode, whatever the mode asked for: features never depend on it."""
        return super().train(False)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Take the buffers as they are stored, whatever the sizes of the present ones."""
        for name, buffer in self._buffers.items():
            if buffer is not None and (stored := state_dict.get(prefix + name)) is not None:
                self._buffers[name] = stored.to(buffer.device)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def identity(self) -> str:
        """Return a hash of everything that determines the features: class, settings, buffers and parameters."""
        digest = hashlib.sha256(f"{type(self).__module__}.{type(self).__qualname__} {VERSION} ".encode())
        digest.update(json.dumps(self.settings, sort_keys=True, default=str).encode())
        for name, tensor in sorted([*self.named_buffers(), *self.named_parameters()]):
            rows = tensor.detach().reshape(1, -1) if tensor.numel() else tensor.detach().reshape(0)
            digest.update(f"{name} {tuple(tensor.shape)}".encode())
            digest.update(content_digest([rows]) or repr(tensor).encode())
        return digest.hexdigest()


class Chain(FeatureMap):
    """Feature maps one after another; the origin is the union of theirs.

    >>> from gnomon.features import RandomFeatures
    >>> chain = Chain(RandomFeatures([(0, 1)], features=4), RandomFeatures([(-1, 1)] * 8, features=3))
    >>> chain(torch.rand(5, 1)).shape, chain.origin.kind
    (torch.Size([5, 6]), 'constants')

    Raises:
        SettingError: if there is no map, or if something is not a feature map.
    """

    def __init__(self, *maps: FeatureMap) -> None:
        if not maps or not all(isinstance(part, FeatureMap) for part in maps):
            kinds = ", ".join(type(part).__name__ for part in maps) or "nothing"
            raise SettingError("maps", kinds, "one or more feature maps; wrap a network in gnomon.features.Pretrained")
        for first, second in pairwise(maps):
            expected = second.settings.get("inputs")
            if expected is not None and first.dimension is not None and expected != first.dimension:
                raise SettingError(
                    "maps", f"{first.name}, then {second.name}", f"a second map of {first.dimension} inputs"
                )
        origin = Origin()
        for part in maps:
            origin |= part.origin
        super().__init__(
            ", then ".join(part.name for part in maps),
            maps[-1].dimension,
            origin=origin,
            settings={"maps": [part.identity() for part in maps]},
        )
        self.maps = nn.ModuleList(maps)
        self.eval()

    def features(self, inputs: Any) -> Tensor:
        """Return the features of the last map."""
        for part in self.maps:
            inputs = part(inputs)
        return inputs


def compose(*maps: FeatureMap) -> FeatureMap:
    """Return the feature maps one after another; chains among them are unfolded, and one map is returned as it is.

    >>> from gnomon.features import RandomFeatures
    >>> first, second = RandomFeatures([(0, 1)], features=4), RandomFeatures([(-1, 1)] * 8, features=3)
    >>> compose(first) is first, len(compose(Chain(first, second), RandomFeatures([(-1, 1)] * 6, features=2)).maps)
    (True, 3)
    """
    flat: list[Any] = []
    for part in maps:
        flat += list(part.maps) if isinstance(part, Chain) else [part]
    return flat[0] if len(flat) == 1 and isinstance(flat[0], FeatureMap) else Chain(*flat)


def unit_norm(features: Tensor) -> Tensor:
    """Scale each row to norm one; a row of zeros stays zero.

    >>> unit_norm(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    flat = features.reshape(len(features), -1)
    return flat / torch.linalg.vector_norm(flat, dim=1, keepdim=True).clamp_(min=SMALLEST_NORM)


def as_float(inputs: Tensor) -> Tensor:
    """Return numbers as float32; bytes, as images are often stored, as their values over 255.

    >>> as_float(torch.tensor([0, 255], dtype=torch.uint8)), as_float(torch.tensor([0, 255]))
    (tensor([0., 1.]), tensor([  0., 255.]))
    """
    return inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs.float()


def record_fingerprints(records: Records | Tensor | Iterable[str | bytes]) -> list[bytes]:
    """Return a fingerprint of each record; bytes count as their values over 255, as in the maps.

    Texts are hashed, and fingerprints among the items are returned as they are.

    >>> image = torch.tensor([[0, 51, 255]], dtype=torch.uint8)
    >>> record_fingerprints(image) == record_fingerprints(image / 255)
    True
    """
    inputs = records.inputs if isinstance(records, Records) else records
    if not isinstance(inputs, Tensor):
        return [_text_fingerprint(item) if isinstance(item, str) else item for item in inputs]
    hashes: list[bytes] = []
    for chunk in inputs.split(4096):
        values = as_float(chunk) if chunk.dtype == torch.uint8 else chunk
        hashes += fingerprints(Records(values, torch.zeros(len(values))))
    return hashes


def _text_fingerprint(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=FINGERPRINT_BYTES).digest()
