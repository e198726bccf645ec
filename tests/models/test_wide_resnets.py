"""Wide residual networks: per-sample gradients through standardised weights are exact, and a Trainer accepts them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from gnomon.data import Records, Source
from gnomon.errors import SettingError
from gnomon.methods import CropAndFlip, Method, Views
from gnomon.models import StandardisedConv2d, build, wide_resnet
from gnomon.runs.builders import build_trainer
from gnomon.runs.config import TrainConfig, read_yaml
from gnomon.updates import RowProjected, gradients
from gnomon.updates.rules import find_rule
from tests.helpers import LOSS, trainer
from tests.updates.zoo import loop, relative, squares

DEEP = Path(__file__).parents[2] / "experiments" / "deep-cifar10.yaml"
"""The settings of De et al."""


def images(count: int, side: int = 28, channels: int = 1):
    draw = torch.Generator().manual_seed(0)
    return torch.rand(count, channels, side, side, generator=draw), torch.randint(0, 10, (count,), generator=draw)


def shaken(model: nn.Module) -> nn.Module:
    """Give gains and biases values other than those at the start."""
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, StandardisedConv2d):
                for p in (layer.gain, layer.bias):
                    p.add_(torch.randn(p.shape, generator=draw), alpha=0.3)
    return model


def test_the_deep_network_has_its_published_shape():
    model = build("wrn-16-4", (3, 32, 32), 10)
    weights = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear))
    assert weights == 2_745_264  # 2.7 million
    assert sum(isinstance(m, nn.Conv2d) for m in model.modules()) == 13 + 3  # with the shortcut of each stage
    assert {m.num_groups for m in model.modules() if isinstance(m, nn.GroupNorm)} == {16}


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"depth": 12, "width": 1}, "depth = 12"), ({"depth": 10, "width": 0}, "width = 0"), ({"depth": 4}, "depth = 4")],
)
def test_networks_that_do_not_exist_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        wide_resnet((3, 32, 32), 10, **({"width": 1} | settings))


def test_filters_are_centred_and_have_the_length_of_their_gain():
    layer = shaken(StandardisedConv2d(5, 4, 3))
    with torch.no_grad():
        layer.weight += 3
    filters = layer.standardised().flatten(1)
    torch.testing.assert_close(filters.mean(1), torch.zeros(4), atol=1e-6, rtol=0)
    torch.testing.assert_close(filters.norm(dim=1), layer.gain.abs())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 3e-6)])
def test_per_sample_gradients_equal_a_loop_over_single_samples(dtype, tolerance):
    model = shaken(build("wrn-10-1", (1, 28, 28), 10)).to(dtype)
    x, y = images(3)
    expected, updates = loop(model, LOSS, x.to(dtype), y), gradients(model, LOSS, x.to(dtype), y)
    assert all(find_rule(m) is not None for m in model.modules() if isinstance(m, nn.Conv2d))
    assert relative(updates.dense(), expected) < tolerance
    assert relative(updates.norms(), expected.double().norm(dim=1)) < tolerance
    weights = torch.tensor([0.3, 1.0, -2.0], dtype=dtype)
    summed = torch.cat([part.flatten() for part in updates.weighted_sum(weights).values()])
    assert relative(summed, weights @ expected) < tolerance


@pytest.mark.parametrize("size", [0.0, 1e-3])
def test_filters_that_are_too_short_to_be_divided_by_their_length_have_gradients_too(size):
    layer, x = StandardisedConv2d(2, 3, 2).double(), torch.randn(4, 2, 5, 5, dtype=torch.float64)
    with torch.no_grad():
        layer.weight[0].mul_(size).add_(1)
    assert relative(gradients(layer, squares, x, None).dense(), loop(layer, squares, x, None)) < 1e-12


def test_large_layers_keep_their_factors():
    layer, x = StandardisedConv2d(64, 64, 3), torch.randn(40, 64, 3, 3)
    updates = gradients(layer, squares, x, None)
    assert isinstance(updates.leaves["weight"], RowProjected)
    assert relative(updates.dense(), loop(layer, squares, x, None)) < 1e-5


def test_the_trainer_accepts_the_small_network_with_views():
    model = build("wrn-10-1", (1, 28, 28), 10)
    t = trainer(
        model, method=Method("own", update=Views(2, CropAndFlip())), expected_batch_size=8, sample_rate=0.5, steps=2
    )
    assert t.fit(images(16)).steps == 2


def test_the_deep_settings_are_read():
    config = TrainConfig.from_dict(read_yaml(DEEP))
    assert (config.model, config.batch_size, config.views, config.augmentation) == (
        "wrn-16-4",
        4096,
        16,
        "crop-and-flip",
    )
    assert (config.max_grad_norm, config.lr, config.noise_multiplier, config.target_epsilon) == (1.0, 4.0, 3.0, 8.0)
    assert (config.ema_decay, config.ema_schedule) == (0.9999, "warm-up")


def test_the_deep_settings_train_the_deep_network_on_a_few_images():
    x, y = images(200, 32, 3)
    source = Source("toy", Records(x, y), Records(x[:20], y[:20]), 10, (3, 32, 32), "random images")
    config = TrainConfig.from_dict(read_yaml(DEEP)).with_settings(
        {
            "device": "cpu",
            "batch-size": 8,
            "views": 2,
            "epochs": 0.08,
            "max-physical-batch-size": 4,
            "private-records": 200,
        }
    )
    t = build_trainer(config, source, source.train[:0], progress=False)
    before = {name: p.detach().clone() for name, p in t.model.named_parameters()}
    result = t.fit(source.train)
    assert result.steps == 2
    assert all(not torch.equal(p, before[name]) and bool(p.isfinite().all()) for name, p in t.model.named_parameters())
    assert "mean gradient of 2 views" in t.statement().method
