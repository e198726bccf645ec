"""A loss returns one value per sample, or is refused with a hint."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gnomon.errors import SettingError
from gnomon.updates import gradients, per_sample

CLASSES = (torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1, 2]))
LABELS = (torch.randn(6, generator=torch.Generator().manual_seed(1)), torch.tensor([0.0, 1, 1, 0, 1, 0]))

MODULES = {
    "cross entropy": (nn.CrossEntropyLoss, {}, CLASSES),
    "cross entropy, weighted": (nn.CrossEntropyLoss, {"weight": torch.tensor([1.0, 2.0, 3.0])}, CLASSES),
    "cross entropy, smoothed": (nn.CrossEntropyLoss, {"label_smoothing": 0.1}, CLASSES),
    "cross entropy, ignoring": (nn.CrossEntropyLoss, {"ignore_index": 1}, CLASSES),
    "likelihood": (nn.NLLLoss, {}, CLASSES),
    "margin": (nn.MultiMarginLoss, {}, CLASSES),
    "binary": (nn.BCEWithLogitsLoss, {}, LABELS),
    "squares": (nn.MSELoss, {}, LABELS),
    "huber": (nn.HuberLoss, {"delta": 0.5}, LABELS),
}


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", MODULES)
def test_a_reducing_criterion_is_converted_and_says_so(name, reduction):
    kind, settings, batch = MODULES[name]
    criterion = kind(reduction=reduction, **settings)
    with pytest.warns(UserWarning, match=f"{kind.__name__}.*reduces over the batch.*reduction='none'"):
        converted = per_sample(criterion)
    assert torch.equal(converted(*batch), kind(reduction="none", **settings)(*batch))
    assert criterion.reduction == reduction  # the user's own object is as it was


@pytest.mark.parametrize("name", MODULES)
def test_a_criterion_without_reduction_is_taken_as_it_is(name, recwarn):
    kind, settings, _ = MODULES[name]
    criterion = kind(reduction="none", **settings)
    assert per_sample(criterion) is criterion
    assert not recwarn.list


@pytest.mark.parametrize(
    "loss",
    [
        F.cross_entropy,
        functools.partial(F.cross_entropy, label_smoothing=0.1),
        F.nll_loss,
        F.multi_margin_loss,
    ],
)
def test_a_reducing_function_is_converted_and_says_so(loss):
    with pytest.warns(UserWarning, match="reduces over the batch"):
        converted = per_sample(loss)
    assert torch.equal(converted(*CLASSES), loss(*CLASSES, reduction="none"))


def test_a_function_without_reduction_is_taken_as_it_is(recwarn):
    for loss in (
        functools.partial(F.cross_entropy, reduction="none"),
        lambda outputs, targets: outputs.sum(1),
    ):
        assert per_sample(loss) is loss
    assert not recwarn.list


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradients_of_a_reducing_criterion_equal_those_without_reduction(reduction):
    torch.manual_seed(0)
    model, inputs = nn.Linear(4, 3), torch.randn(6, 4)
    expected = gradients(model, nn.CrossEntropyLoss(reduction="none"), inputs, CLASSES[1])
    with pytest.warns(UserWarning, match="reduces over the batch"):
        found = gradients(model, nn.CrossEntropyLoss(reduction=reduction), inputs, CLASSES[1])
    assert torch.equal(found.dense(), expected.dense())
    assert torch.equal(found.losses, expected.losses)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda o, t: F.cross_entropy(o, t), r"shape \(\) for 6 samples.*shape \(6,\): use reduction='none'"),
        (functools.partial(F.cross_entropy, reduction="mean"), r"shape \(\) for 6 samples.*reduction='none'"),
        (lambda o, t: o, r"shape \(6, 3\) for 6 samples.*average the values of each sample"),
        (lambda o, t: o.sum(1, keepdim=True), r"shape \(6, 1\) for 6 samples"),
        (lambda o, t: o.sum(0), r"shape \(3,\) for 6 samples"),
        (lambda o, t: o.flatten(), r"shape \(18,\) for 6 samples"),
        (lambda o, t: o.sum(1)[:5], r"shape \(5,\) for 6 samples"),
        (lambda o, t: o.sum(1)[None], r"shape \(1, 6\) for 6 samples"),
    ],
)
def test_a_loss_of_another_shape_is_refused_with_a_hint(loss, message):
    with pytest.raises(ValueError, match=message):
        gradients(nn.Linear(4, 3), loss, torch.randn(6, 4), CLASSES[1])


def test_a_scalar_loss_is_refused_for_a_single_sample_too():
    with pytest.raises(ValueError, match=r"shape \(\) for 1 samples"):
        gradients(nn.Linear(4, 3), lambda o, t: o.sum(), torch.randn(1, 4), None)


def test_a_loss_that_broadcasts_outputs_against_targets_is_refused():
    with pytest.raises(ValueError, match=r"shape \(6, 6\) for 6 samples"):
        gradients(nn.Linear(4, 1), lambda o, t: (o - t) ** 2, torch.randn(6, 4), LABELS[1])


@pytest.mark.parametrize("loss", [None, "cross_entropy", 3.0])
def test_what_is_no_loss_is_refused(loss):
    with pytest.raises(SettingError, match="expected a callable"):
        gradients(nn.Linear(4, 3), loss, torch.randn(6, 4), CLASSES[1])


def test_a_loss_that_returns_no_tensor_is_refused():
    with pytest.raises(SettingError, match="returned a float; it must return a tensor"):
        gradients(nn.Linear(4, 3), lambda o, t: 1.0, torch.randn(6, 4), CLASSES[1])


def test_a_loss_that_reads_a_parameter_is_refused_by_name():
    model = nn.Linear(4, 3)
    with pytest.raises(ValueError, match=r"uses parameters \['weight'\] directly"):
        gradients(model, lambda o, t: o.sum(1) + model.weight.square().sum(), torch.randn(6, 4), None)
