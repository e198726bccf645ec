"""The models have the published sizes, look at one record at a time, and depend on the seed alone."""

import pytest
import torch
from torch import nn

from gnomon.data import Records, Source, load
from gnomon.errors import SettingError
from gnomon.models import NAMES, build, default_model, logistic, mlp, paper_cnn

SHAPES = {
    "cnn": [(1, 28, 28)],
    "cnn-small": [(1, 8, 8), (3, 9, 13)],
    "lenet": [(3, 32, 32), (1, 28, 28)],
    "mlp": [(1, 28, 28), (5,)],
    "resnet20": [(3, 32, 32), (1, 28, 28)],
    "wrn-10-1": [(3, 32, 32), (1, 28, 28)],
    "wrn-16-4": [(3, 32, 32)],
    "text": [(20,)],
    "logistic": [(104,), (1, 8, 8)],
    "linear": [(104,), (1, 8, 8)],
}
CASES = [(name, shape) for name in NAMES for shape in SHAPES[name]]


def size(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("cnn", (1, 28, 28), 26_010),
        ("lenet", (3, 32, 32), 62_006),
        ("mlp", (1, 28, 28), 118_282),
        ("resnet20", (3, 32, 32), 269_722),
        ("cnn-small", (1, 8, 8), 1_898),
        ("logistic", (1, 28, 28), 7_850),
    ],
)
def test_the_parameter_counts_are_the_published_ones(name, shape, parameters):
    assert size(build(name, shape, 10)) == parameters


def test_a_hundred_directions_a_tensor_make_490_for_the_cnn():
    sizes = [p.numel() for p in paper_cnn((1, 28, 28), 10).parameters()]
    assert sizes == [1024, 16, 8192, 32, 16384, 32, 320, 10]
    assert sum(min(100, n) for n in sizes) == 490


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_no_record_moves_the_logits_of_another(name, shape):
    model = build(name, shape, 7)
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    changed = torch.cat([x[:2], 100 * x[2:]])
    logits = model(x)
    assert logits.shape == (3, 7)
    torch.testing.assert_close(logits[:2], model(changed)[:2])
    torch.testing.assert_close(logits[:1], model(x[:1]), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_no_layer_couples_records_drops_units_or_works_in_place(name, shape):
    for layer in build(name, shape, 10).modules():
        assert not isinstance(layer, nn.modules.batchnorm._NormBase | nn.Dropout)
        assert not getattr(layer, "inplace", False)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_every_parameter_gets_a_gradient_and_the_input_is_untouched(name, shape):
    model = build(name, shape, 10)
    x = torch.rand(4, *shape, generator=torch.Generator().manual_seed(0))
    kept = x.clone()
    nn.functional.cross_entropy(model(x), torch.arange(4)).backward()
    assert torch.equal(x, kept)
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_weights_depend_on_the_seed_alone(name, shape):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first = build(name, shape, 10, seed=3)
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(1)
    again, other = build(name, shape, 10, seed=3), build(name, shape, 10, seed=4)
    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), again.parameters(), strict=True))
    fixed = name == "linear"  # starts at zero
    assert fixed or any(not torch.equal(p, q) for p, q in zip(first.parameters(), other.parameters(), strict=True))


def test_layers_have_the_sizes_asked_for():
    assert size(mlp((4,), 3, hidden=(5,))) == 4 * 5 + 5 + 5 * 3 + 3
    assert size(logistic((4,), 3)) == 4 * 3 + 3


@pytest.mark.parametrize(
    ("name", "shape", "hint"),
    [
        ("cnn", (1, 8, 8), "'cnn-small'"),
        ("cnn", (3, 32, 32), "'lenet'"),
        ("cnn", (104,), "'mlp'"),
        ("lenet", (1, 8, 8), "'cnn-small'"),
        ("resnet20", (1, 8, 8), "'cnn-small'"),
        ("cnn-small", (1, 2, 2), "'mlp'"),
        ("cnn-small", (5,), "'mlp'"),
    ],
)
def test_a_shape_that_does_not_fit_names_a_model_that_does(name, shape, hint):
    with pytest.raises(SettingError, match=rf"input_shape = .*{name!r}.*{hint}"):
        build(name, shape, 10)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("vgg", (1, 8, 8), 10), "model = 'vgg'.*cnn-small.*package.module:Class"),
        (("mlp", (1, 8, 8), 1), "classes = 1"),
        (("mlp", (1, 0, 8), 10), "input_shape = 0"),
        (("mlp", (), 10), r"input_shape = \(\)"),
    ],
)
def test_settings_that_make_no_sense_are_named(arguments, named):
    with pytest.raises(SettingError, match=named):
        build(*arguments)


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((1, 28, 28), "cnn"),
        ((3, 32, 32), "lenet"),
        ((104,), "logistic"),
        ((1, 8, 8), "logistic"),
        ((3, 64, 64), "cnn-small"),
        ((1, 2, 3), "mlp"),
        ((6, 5), "mlp"),
    ],
)
def test_the_default_model_fits_the_shape(shape, name):
    few = Records(torch.zeros(2, *shape), torch.zeros(2, dtype=torch.int64))
    source = Source("toy", few, few, 3, shape, "zeros")
    assert default_model(source) == name
    assert build(name, shape, 3)(few.inputs).shape == (2, 3)


def test_the_default_model_learns_the_digits():
    source = load("digits")
    model = build(default_model(source), source.input_shape, source.classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(source.train.inputs), source.train.targets).backward()
        optimizer.step()
    right = model(source.test.inputs).argmax(1) == source.test.targets
    assert float(right.float().mean()) > 0.9
