"""Augmentation multiplicity: the update of a record is the mean gradient of several random views of that record.

The augmentation is random from view to view and from step to step, but it is a fixed function of one record: all random
numbers are computed from a public seed, the number of the step, the number of the view and the content of the record
itself. So the update of a record depends on that record alone, with certainty and for every seed. The clip bound holds
without any assumption about the seed; the place of a record in its batch, padding and the size of physical batches do
not matter; and a step that is repeated, in a check or after a restart, sees the same views.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from gnomon import validate
from gnomon.errors import SettingError
from gnomon.updates import Layouts, Loss, Updates, gradients
from gnomon.updates.trees import batch_size, take_rows, tensors

ODD = (-0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)
"""The increment and the two factors of SplitMix64 (Steele, Lea and Flood 2014), as signed numbers."""


@runtime_checkable
class Augmentation(Protocol):
    """A random change of records, as a function of each record and of a random number that belongs to it.

    Row i of the result must depend on row i of the inputs and on key i alone. A Trainer refuses an augmentation that
    mixes records, keeps state, or draws from a generator, whose numbers depend on the row of a record.
    """

    @property
    def name(self) -> str:
        """The text used in statements. Checkpoints compare it."""

    def __call__(self, inputs: Any, keys: Tensor) -> Any:
        """Return the inputs (N, ...) with each row changed at random.

        Args:
            inputs: the inputs of the records.
            keys: a random whole number for each row, int64, (N,); see `uniform`.
        """


@dataclass(frozen=True)
class CropAndFlip:
    """Crops of images that are padded by reflection, at random places, of which a random half is mirrored.

    Args:
        padding: the number of pixels by which an image is padded on each side, and moves at most.
        flip: whether half of the images are mirrored horizontally.

    >>> images = torch.arange(16.0).reshape(1, 1, 4, 4)
    >>> CropAndFlip(2)(images, torch.tensor([3])).shape
    torch.Size([1, 1, 4, 4])
    """

    padding: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        validate.whole("padding", self.padding, 0)

    @property
    def name(self) -> str:
        """The text used in statements and logs."""
        flips = " and flips" if self.flip else ""
        return f"random crops with padding {self.padding}{flips}"

    def __call__(self, inputs: Any, keys: Tensor) -> Tensor:
        """Return each image (N, C, height, width) cropped and mirrored as its key says.

        Raises:
            SettingError: the inputs are not images that are larger than the padding.
        """
        if not isinstance(inputs, Tensor) or inputs.dim() != 4 or min(inputs.shape[2:]) <= self.padding:
            shape = tuple(inputs.shape) if isinstance(inputs, Tensor) else type(inputs).__name__
            expected = f"images, (records, channels, height, width), of more than {self.padding} pixels a side"
            raise SettingError("inputs", shape, f"{expected}; leave out the augmentation for other inputs")
        height, width = inputs.shape[2:]
        down, right = (uniform(keys, 2 * self.padding + 1, number) - self.padding for number in (0, 1))
        rows, columns = (
            _reflected(shift[:, None] + torch.arange(size, device=inputs.device), size)
            for shift, size in ((down, height), (right, width))
        )
        if self.flip:
            columns = torch.where(uniform(keys, 2, 2)[:, None] == 1, columns.flip(1), columns)
        place = rows[:, None, :, None] * width + columns[:, None, None, :]  # (N, 1, height, width)
        flat = inputs.reshape(*inputs.shape[:2], height * width)
        chosen = place.flatten(1).view(len(inputs), 1, -1).expand(flat.shape)
        return flat.gather(2, chosen).view(inputs.shape)


@dataclass(frozen=True)
class Views:
    """The update of augmentation multiplicity (De et al., "Unlocking High-Accuracy Differentially Private Image
    Classification through Scale", 2022): the mean of the gradients of several views of one record.

    Guarantee: the mean is clipped once, so a record moves the sum by at most the clip bound, as without views. The
    views of a record are a function of its content, the step and the seed; see the text of this module. Physical
    batches count records: the model computes `views` rows for each of them.

    Args:
        views: the number of views of each record in a step, K.
        augmentation: makes a view of a record (default: none, so that all views are the record itself).
        seed: the public seed of the views.

    Raises:
        SettingError: a setting is out of range.

    >>> Views(16, CropAndFlip()).name
    'mean gradient of 16 views (random crops with padding 4 and flips)'
    >>> from gnomon.methods import Method
    >>> Method("own", update=Views(4)).describe()
    'own: mean gradient of 4 views, flat clipping'
    """

    views: int = 16
    augmentation: Augmentation | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        validate.whole("views", self.views)
        validate.whole("seed", self.seed, 0)
        if self.augmentation is not None and not isinstance(self.augmentation, Augmentation):
            raise SettingError("augmentation", self.augmentation, "an object such as CropAndFlip(), or None")

    @property
    def name(self) -> str:
        """The text used in statements and logs."""
        count = f"mean gradient of {self.views} view{'s' if self.views > 1 else ''}"
        return count if self.augmentation is None else f"{count} ({self.augmentation.name})"

    @property
    def watched(self) -> Augmentation | None:
        """The augmentation, whose state must not change in a step."""
        return self.augmentation

    def __call__(
        self,
        model: nn.Module,
        loss: Loss,
        inputs: Any,
        targets: Any,
        *,
        layouts: Layouts | None = None,
        step: int = 0,
    ) -> Updates:
        inputs, targets = self.of(inputs, targets, step)
        return gradients(model, loss, inputs, targets, layouts=layouts, views=self.views)

    def of(self, inputs: Any, targets: Any, step: int = 0) -> tuple[Any, Any]:
        """Return the views of each record in a step, one record after the other, and their targets.

        Raises:
            SettingError: the augmentation draws from a generator of torch, or returns another number of rows.

        >>> Views(2).of(torch.tensor([5.0, 6.0]), torch.tensor([0, 1]))
        (tensor([5., 5., 6., 6.]), tensor([0, 0, 1, 1]))
        """
        size = batch_size(inputs)
        repeated = inputs, targets
        if self.views > 1:
            repeated = take_rows(repeated, torch.arange(size).repeat_interleave(self.views))
        if self.augmentation is None or not size:
            return repeated
        keys = self._keys(inputs, step)
        before = _generator_states(keys.device)
        augmented = self.augmentation(repeated[0], keys)
        if not torch.equal(before, _generator_states(keys.device)):
            expected = (
                "one that computes its random numbers from the keys: numbers drawn from a generator depend on the row "
                "of a record, and so on the other records"
            )
            raise SettingError("augmentation", self.augmentation.name, expected)
        if batch_size(augmented) != size * self.views:
            expected = f"one that returns a row for each of the {size * self.views} rows that it was given"
            raise SettingError("augmentation", self.augmentation.name, expected)
        return augmented, repeated[1]

    def _keys(self, inputs: Any, step: int) -> Tensor:
        """Return a key for each view of each record, (B * views,)."""
        records = record_keys(inputs, self.seed)
        number = torch.arange(self.views, device=records.device) + step * self.views
        return _mixed(records[:, None] + _mixed(number)).flatten()


def record_keys(inputs: Any, seed: int) -> Tensor:
    """Return a random number for each record that depends on its content and the seed alone, int64, (B,).

    The bits of a record are multiplied by random odd numbers and added, in integer arithmetic, so that neither the
    other records of the batch nor the order of additions have an effect.

    Args:
        inputs: the inputs of the records, in any nested structure.
        seed: the seed.

    >>> keys = record_keys(torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]]), seed=0)
    >>> bool(keys[0] == keys[2]), bool(keys[0] == keys[1])
    (True, False)
    """
    keys: Tensor | None = None
    for number, values in enumerate(t for t in tensors(inputs) if t.dim()):
        bits = _bits(values.detach()).flatten(1)
        place = torch.arange(bits.shape[1], device=bits.device)
        factors = _mixed(place + _mixed(torch.tensor(seed, device=bits.device)) + number) | 1
        products = _mixed((bits * factors).sum(1))
        keys = products if keys is None else _mixed(keys + products)
    assert keys is not None, "batch_size has found a tensor"
    return keys


def uniform(keys: Tensor, count: int, number: int) -> Tensor:
    """Return a uniform whole number from 0 to `count` - 1 for each key; `number` counts the draws of one key.

    >>> drawn = uniform(torch.arange(1000), 4, 0)
    >>> drawn.unique(), bool((drawn == uniform(torch.arange(1000), 4, 1)).all())
    (tensor([0, 1, 2, 3]), False)
    """
    return (_mixed(keys + number) & 0x7FFFFFFF) % count


def _generator_states(device: torch.device) -> Tensor:
    """Return the states of torch's generators on the CPU and on a device."""
    states = torch.get_rng_state()
    return torch.cat([states, torch.cuda.get_rng_state(device)]) if device.type == "cuda" else states


def _bits(values: Tensor) -> Tensor:
    """Return the bits of each record as whole numbers, int64, (B, ...)."""
    if values.is_complex():
        values = torch.view_as_real(values)
    if values.is_floating_point():
        wholes = {2: torch.int16, 4: torch.int32, 8: torch.int64}
        values = values.contiguous().view(wholes[values.element_size()])
    return values.long().reshape(len(values), values.shape[1:].numel())


def _mixed(values: Tensor) -> Tensor:
    """Return SplitMix64 of int64 numbers, whose arithmetic is modulo 2^64."""
    increment, first, second = ODD
    values = (values + 1) * increment
    values = (values ^ _shifted(values, 30)) * first
    values = (values ^ _shifted(values, 27)) * second
    return values ^ _shifted(values, 31)


def _shifted(values: Tensor, by: int) -> Tensor:
    """Return the values shifted to the right, with zeros from the left also for negative numbers."""
    return (values >> by) & ((1 << (64 - by)) - 1)


def _reflected(index: Tensor, size: int) -> Tensor:
    """Return positions beyond the borders of an image reflected at its first and last pixel.

    >>> _reflected(torch.arange(-2, 5), 3)
    tensor([2, 1, 0, 1, 2, 1, 0])
    """
    index = index.abs()
    return torch.where(index < size, index, 2 * (size - 1) - index)
