"""Known spaces of updates: the projection removes noise alone, after the release."""

import dataclasses
import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gnomon import methods
from gnomon.clipping import PerLayer
from gnomon.errors import SettingError
from gnomon.ledger import Ledger
from gnomon.losses import hinge, logistic
from gnomon.methods import ZeroSum, softmax_head
from gnomon.release import SeededNoise
from gnomon.training import CheckpointError, Mechanism, read_checkpoint, restore_checkpoint, save_checkpoint
from tests.helpers import LOSS, trainer

CLASSES = 5
GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(60, 4, generator=GENERATOR), torch.randint(0, CLASSES, (60,), generator=GENERATOR)
PUBLIC = torch.randn(20, 4, generator=GENERATOR), torch.randint(0, CLASSES, (20,), generator=GENERATOR)
SPACE = ZeroSum({"2.weight": 0, "2.bias": 0})


def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, CLASSES))


def stepped(method, *, noise_multiplier=1.0, steps=1):
    """Return the change of each parameter after one step of plain SGD with rate 1, and the Trainer."""
    model = network()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    made = trainer(model, method=method, noise_multiplier=noise_multiplier, steps=steps, noise=SeededNoise(7))
    made.fit((X, Y))
    return {name: p.detach() - before[name] for name, p in model.named_parameters()}, made


KEPT = {
    "dp-sgd": lambda: methods.dp_sgd(),
    "per layer": lambda: methods.dp_sgd(clip=PerLayer()),
    "dp-lsgd": lambda: methods.dp_lsgd(steps=3, lr=0.1),
    "pdp": lambda: methods.pdp(PUBLIC, rank=6),
    "pcdp": lambda: methods.pcdp(PUBLIC, rank=6),
    "gep": lambda: methods.gep(PUBLIC, rank=6),
}
"""Methods whose lifted updates lie in the space."""

MOVED = {
    "rsdp": lambda: methods.rsdp(),
    "rpdp": lambda: methods.rpdp(rank=9),
    "rpcdp": lambda: methods.rpcdp(rank=9),
}
"""Methods that move updates out of the space."""


@pytest.mark.parametrize("make", KEPT.values(), ids=KEPT)
def test_without_noise_the_step_is_that_without_the_projection(make):
    plain, _ = stepped(make(), noise_multiplier=1e-9)
    projected, _ = stepped(make().within(SPACE), noise_multiplier=1e-9)
    for name, change in plain.items():
        torch.testing.assert_close(projected[name], change, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("make", [*KEPT.values(), *MOVED.values()], ids=[*KEPT, *MOVED])
def test_with_noise_the_class_sums_vanish_and_release_and_epsilon_stay(make):
    plain, without = stepped(make())
    projected, with_space = stepped(make().within(SPACE))
    for name in ("2.weight", "2.bias"):
        assert float(projected[name].sum(0).abs().max()) < 1e-5
    for name in ("0.weight", "0.bias"):
        assert torch.equal(projected[name], plain[name])
    for name, value in without.released.coordinates.items():
        assert torch.equal(with_space.released.coordinates[name], value)
    assert with_space.epsilon() == without.epsilon()
    assert (
        "noise removed from the sums of 2.weight (dimension 0), 2.bias (dimension 0)" in with_space.statement().text()
    )


def test_the_variance_of_the_noise_falls_by_one_over_the_number_of_classes():
    drawn = SeededNoise(0).normal(CLASSES * 20_000).reshape(CLASSES, 20_000)
    kept = ZeroSum({"w": 0}).project({"w": drawn})["w"]
    assert float(kept.var() / drawn.var()) == pytest.approx(1 - 1 / CLASSES, rel=0.02)


def test_the_projection_is_idempotent_and_leaves_its_input_as_it_was():
    update = {"w": torch.randn(3, 2, generator=GENERATOR), "v": torch.ones(2)}
    before = update["w"].clone()
    once = ZeroSum({"w": 0}).project(update)
    assert torch.equal(update["w"], before)
    torch.testing.assert_close(ZeroSum({"w": 0}).project(once), once)
    assert list(once) == ["w", "v"]
    assert once["v"] is update["v"]


def test_terms_are_added_after_the_projection():
    class Ones:
        name = "ones"

        def __call__(self, parameters):
            return {"2.bias": torch.ones(CLASSES)}

    method = dataclasses.replace(methods.dp_sgd(), step=methods.Descent((Ones(),))).within(SPACE)
    changed, _ = stepped(method)
    assert float(changed["2.bias"].sum()) == pytest.approx(-CLASSES, abs=1e-5)
    assert method.step.name.endswith("then ones")


def test_a_constrained_step_refuses_the_space():
    with pytest.raises(SettingError, match="an unconstrained step"):
        methods.dp_comp_minibatch("l1:5", sketch=4).within(SPACE)
    with pytest.raises(SettingError, match="an UpdateSpace"):
        methods.dp_sgd().within({"2.bias": 0})


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({}, "at least one parameter"),
        ({"2.bias": -1}, "at least 0"),
        ({"2.bias": True}, "at least 0"),
        ({"2.bias": 1}, r"a dimension of 2.bias, which has the shape \(5,\)"),
        ({"9.bias": 0}, "a trainable parameter: 0.weight"),
    ],
)
def test_dimensions_that_the_parameters_lack_are_refused(dims, message):
    with pytest.raises(SettingError, match=message):
        trainer(network(), method=methods.dp_sgd().within(ZeroSum(dims)))


def test_a_mechanism_names_the_space_and_its_price_does_not_depend_on_it():
    plain, within = methods.dp_sgd(), methods.dp_sgd().within(SPACE)
    mechanism = trainer(network(), method=within).mechanism
    assert Mechanism.from_dict(mechanism.to_dict(), within) == mechanism
    assert dataclasses.replace(mechanism, method=plain).epsilon() == mechanism.epsilon()
    with pytest.raises(SettingError, match="the method that was described"):
        Mechanism.from_dict(mechanism.to_dict(), plain)


def test_a_run_is_resumed_with_the_same_space_only(tmp_path):
    def made(method):
        return trainer(network(), method=method, steps=40, ledger=Ledger(tmp_path / "ledger.sqlite"))

    first = made(methods.dp_sgd().within(SPACE))
    first.step(*next(first.batches((X, Y))))
    save_checkpoint(first, tmp_path)
    with pytest.raises(CheckpointError, match="method"):
        restore_checkpoint(made(methods.dp_sgd()), read_checkpoint(tmp_path), (X, Y))
    again = made(methods.dp_sgd().within(SPACE))
    assert restore_checkpoint(again, read_checkpoint(tmp_path), (X, Y)) == 16
    before = again.model[2].bias.detach().clone()
    again.step(*next(again.batches((X, Y))))
    assert float((again.model[2].bias - before).sum().detach().abs()) < 1e-5


# -- the helper --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss",
    [LOSS, F.cross_entropy, functools.partial(F.cross_entropy, reduction="none"), logistic,
     nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1, weight=torch.arange(1.0, CLASSES + 1))],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*reduces over the batch")
def test_the_head_of_a_network_with_cross_entropy_is_found_and_verified(loss):
    assert softmax_head(network(), loss, (X, Y)) == SPACE
    nested = nn.Sequential(
        nn.Flatten(), nn.Sequential(nn.Linear(4, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, CLASSES)))
    )
    assert softmax_head(nested, loss, (X, Y)).dims == {"1.1.1.weight": 0, "1.1.1.bias": 0}
    assert softmax_head(nn.Linear(4, CLASSES, bias=False), loss, (X, Y)).dims == {"weight": 0}


def test_a_frozen_bias_is_left_out():
    model = nn.Linear(4, CLASSES)
    model.bias.requires_grad_(False)
    assert softmax_head(model, LOSS).dims == {"weight": 0}
    model.weight.requires_grad_(False)
    with pytest.raises(SettingError, match="a head with a trainable parameter"):
        softmax_head(model, LOSS)


class Scaled(nn.Sequential):
    def forward(self, x):
        return super().forward(x).clamp(0, 1)


def tied():
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


def hooked():
    model = nn.Linear(4, CLASSES)
    model.register_forward_hook(lambda module, inputs, outputs: outputs.clamp(0, 1))
    return model


@pytest.mark.parametrize(
    "model",
    [nn.Sequential(nn.Linear(4, CLASSES), nn.ReLU()), Scaled(nn.Linear(4, CLASSES)), nn.Linear(4, 1), nn.Sequential(),
     nn.utils.parametrizations.weight_norm(nn.Linear(4, CLASSES)), tied(), hooked()],
    ids=["activation after", "own forward", "one output", "empty", "weight norm", "tied", "hook"],
)  # fmt: skip
def test_a_model_that_does_not_end_in_a_plain_head_is_refused(model):
    with pytest.raises(SettingError, match="model ="):
        softmax_head(model, LOSS)


def test_another_loss_is_refused():
    for loss in (hinge, nn.MSELoss(reduction="none"), lambda outputs, targets: outputs.sum(1)):
        with pytest.raises(SettingError, match="the cross-entropy"):
            softmax_head(network(), loss)


def test_an_example_shows_logits_in_another_dimension():
    model = nn.Linear(4, CLASSES)  # (B, T, classes): the cross-entropy takes T for the classes

    class PerToken(nn.CrossEntropyLoss):
        pass

    with pytest.raises(SettingError, match="the cross-entropy"):
        softmax_head(model, PerToken())
    inputs, targets = torch.randn(6, 3, 4, generator=GENERATOR), torch.randint(0, 3, (6, CLASSES), generator=GENERATOR)
    with pytest.raises(SettingError, match="a gradient of weight that sums to"):
        softmax_head(model, LOSS, (inputs, targets))
