"""Columns of a table as features: numbers as piecewise linear bins, categories as centred indicators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gnomon.errors import DataError, SettingError
from gnomon.features.feature_map import FeatureMap, Origin, unit_norm
from gnomon.text import counted
from gnomon.validate import non_negative, number, whole


class BinnedColumns(FeatureMap):
    """Numbers of a table in overlapping bins of their declared ranges, categories as indicators, and a constant.

    A number becomes `bins + 1` weights: its two nearest nodes of an even grid on the range share the weight one, so a
    linear model of them is a continuous, piecewise linear function of the number. Values outside of the range are
    clamped. The indicators of a category with m values are centred by 1 / m. The constant takes the place of a bias,
    and each row is scaled to norm one. Declare ranges that are known without the data: a minimum or maximum of private
    records is a private statistic.

    Args:
        columns: the number of columns of the inputs.
        ranges: the declared range of each column that holds a number, by its position.
        categories: the first position and the number of values of each category. All other columns are kept.
        bins: the number of bins of a range.
        constant: the constant.

    Raises:
        SettingError: a range is empty, or a column does not exist or is described twice.

    >>> table = BinnedColumns(4, {0: (0, 100)}, [(1, 3)], bins=2, constant=1.0)
    >>> features = table(torch.tensor([[25.0, 0.0, 1.0, 0.0]]))  # halfway between the nodes at 0 and 50
    >>> features / features[0, -1]
    tensor([[ 0.5000,  0.5000,  0.0000, -0.3333,  0.6667, -0.3333,  1.0000]])
    """

    low: Tensor
    width: Tensor
    centre: Tensor

    def __init__(
        self,
        columns: int,
        ranges: dict[int, tuple[float, float]],
        categories: Sequence[tuple[int, int]] = (),
        bins: int = 10,
        constant: float = 1.0,
    ) -> None:
        columns, bins, constant = whole("columns", columns), whole("bins", bins), non_negative("constant", constant)
        described = [*ranges, *(first + step for first, count in categories for step in range(count))]
        outside = [position for position in described if not 0 <= position < columns]
        if outside or len(set(described)) < len(described):
            position = outside[0] if outside else max(described, key=described.count)
            raise SettingError("columns", position, f"each column of 0 to {columns - 1} at most once")
        for position, (low, high) in ranges.items():
            if not number("ranges", low) < number("ranges", high):
                raise SettingError(f"ranges[{position}]", (low, high), "a smallest value below the largest one")
        others = columns - len(ranges)
        super().__init__(
            f"{counted(len(ranges), 'number')} in {bins} bins, {counted(len(categories), 'category', 'categories')}, "
            "unit norm",
            len(ranges) * (bins + 1) + others + bool(constant),
            origin=Origin(constants=("declared ranges and categories of the columns",)),
            settings={
                "inputs": columns,
                "numbers": sorted(ranges),
                "bins": bins,
                "constant": constant,
            },
        )
        self.bins, self.constant = bins, constant
        self.numbers = sorted(ranges)
        self.others = [position for position in range(columns) if position not in ranges]
        centre = torch.zeros(columns)
        for first, count in categories:
            centre[first : first + count] = 1 / count
        self.register_buffer("low", torch.tensor([ranges[position][0] for position in self.numbers]))
        self.register_buffer(
            "width", torch.tensor([ranges[position][1] - ranges[position][0] for position in self.numbers])
        )
        self.register_buffer("centre", centre[self.others])

    def features(self, inputs: Tensor) -> Tensor:
        """Return bins, centred indicators and the constant, with unit norm."""
        if inputs.ndim != 2 or inputs.shape[1] != self.settings["inputs"]:
            shape, expected = tuple(inputs.shape), self.settings["inputs"]
            raise DataError("a batch of rows", f"has shape {shape}", f"this map takes (B, {expected})")
        rows = inputs.float()
        place = ((rows[:, self.numbers] - self.low) / self.width).clamp(0, 1) * self.bins  # NaN stays NaN
        nodes = torch.arange(self.bins + 1, device=rows.device)
        weights = (1 - (place.unsqueeze(2) - nodes).abs()).clamp(min=0)  # (B, numbers, bins + 1)
        parts = [weights.flatten(1), rows[:, self.others] - self.centre]
        if self.constant:
            parts.append(rows.new_full((len(rows), 1), self.constant))
        return unit_norm(torch.cat(parts, 1))


def of_columns(columns: int, table: Any, bins: int = 10) -> BinnedColumns:
    """Return the map of a data set's named columns, whose numbers are scaled to 0 to 1 by published constants.

    Args:
        columns: the number of columns of the inputs.
        table: the columns by name, as `gnomon.data.Source.columns` has them.
        bins: the number of bins.

    >>> from gnomon.data.sources.columns import layout
    >>> of_columns(3, layout(["age"], {"sex": ("Female", "Male")})).dimension
    14
    """
    ranges = {column.first: (0.0, 1.0) for column in table.values() if not column.values}
    categories = [(column.first, len(column.values)) for column in table.values() if column.values]
    return BinnedColumns(columns, ranges, categories, bins)
