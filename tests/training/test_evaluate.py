"""Scores of a model on held-out records."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from gnomon import evaluate
from gnomon.training.evaluate import area_under_curve
from tests.helpers import LOSS, data


@pytest.mark.parametrize("seed", range(5))
def test_the_area_under_the_curve_is_that_of_scikit_learn_with_ties(seed):
    generator = np.random.default_rng(seed)
    labels, margins = generator.integers(0, 2, 200), generator.integers(-3, 4, 200) / 2
    ours = area_under_curve(torch.from_numpy(margins), torch.from_numpy(labels))
    assert ours == pytest.approx(roc_auc_score(labels, margins))


@pytest.mark.parametrize(
    ("margins", "labels"),
    [([0.1, 0.2], [1, 1]), ([0.1, float("nan")], [0, 1]), ([0.1, 0.2, 0.3], [0, 1, 2])],
)
def test_there_is_no_area_without_both_classes_or_with_scores_that_are_not_finite(margins, labels):
    assert area_under_curve(torch.tensor(margins), torch.tensor(labels)) is None


def test_models_of_two_classes_get_an_area_and_others_do_not():
    inputs, targets = data()
    assert 0 <= evaluate(nn.Linear(4, 2), LOSS, (inputs, targets))["auc"] <= 1
    assert "auc" not in evaluate(nn.Linear(4, 3), LOSS, (inputs, targets))
