"""BesideLoss: the mean loss is released as one more coordinate of the same vector."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

import gnomon
from gnomon.clipping import Automatic, EmbeddingAndResidual, Fair, Flat, UpdateAndLoss
from gnomon.errors import SettingError
from gnomon.methods import ClipThenProject, Method, gep, pdp
from gnomon.release import Door, SeededNoise
from gnomon.subspaces import Ambient, BesideLoss, Held, PublicEigenspace, StepContext
from gnomon.updates import gradients
from tests import helpers
from tests.helpers import LOSS


def method(space: BesideLoss) -> Method:
    return Method("with loss", subspace=space)


def trainer(space: BesideLoss, bound: float = 0.3, **settings) -> gnomon.Trainer:
    torch.manual_seed(0)
    defaults = {"sample_rate": 1.0, "expected_batch_size": 20, "noise_multiplier": 0.0, "steps": 2}
    joint = UpdateAndLoss(space.ratio).joint(bound)
    return helpers.trainer(
        nn.Linear(4, 3), seed=None, method=method(space), max_grad_norm=joint, **(defaults | settings)
    )


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(20, 4, generator=generator), torch.randint(0, 3, (20,), generator=generator)


def test_without_noise_it_is_the_mean_of_the_cut_losses_and_the_step_is_that_of_dp_sgd():
    x, y = data()
    space = BesideLoss(Ambient(), bound=0.3, most=1.0)
    private = trainer(space)
    losses = LOSS(private.model(x), y).detach()
    assert (losses > 1).any(), "the test needs losses above the bound"
    reference = trainer(BesideLoss(Ambient(), bound=0.3))
    reference.method = gnomon.methods.dp_sgd()
    reference.engine._mechanism = dataclasses.replace(reference.mechanism, max_grad_norm=0.3)
    seen: list[float] = []
    private.fit((x, y), on_step=lambda step: seen.append(private.released.extra["loss"]))
    reference.fit((x, y))
    assert seen[0] == pytest.approx(float(losses.clamp(0, 1).mean()), rel=1e-5)
    torch.testing.assert_close(private.model.weight, reference.model.weight)


@pytest.mark.parametrize("ratio", [0.5, 2.5])
def test_one_record_moves_update_and_loss_by_at_most_the_joint_bound(ratio):
    x, y = data()
    model = nn.Linear(4, 3)
    for left_out in range(4):
        sums = []
        for keep in (torch.arange(20), torch.tensor([i for i in range(20) if i != left_out])):
            basis = BesideLoss(Ambient(), 0.3, 1.0, ratio).basis(StepContext(model, LOSS, 0, 1, 1, SeededNoise(0)))
            rule = UpdateAndLoss(ratio, Flat())
            door = Door(basis.like, rule.joint(0.3), 0.0, 1.0, SeededNoise(0))
            door.admit(basis.coordinates(gradients(model, LOSS, x[keep] * 50, y[keep])), rule)
            sums.append(torch.cat([value.flatten() for value in door.release().values()]))
        assert float((sums[0] - sums[1]).norm()) <= UpdateAndLoss(ratio).joint(0.3) * (1 + 1e-4)


def test_noise_on_the_loss_has_the_ratio_of_multipliers():
    sigma, ratio, most, draws = 2.0, 2.5, 1.5, 2000
    space = BesideLoss(Ambient(), bound=0.3, most=most, ratio=ratio)
    basis = space.basis(StepContext(nn.Linear(4, 3), LOSS, 0, 1, 1, SeededNoise(0)))
    joint = UpdateAndLoss(ratio).joint(1.0)
    noise = SeededNoise(5)
    releases = [Door(basis.like, 0.3 * joint, sigma / joint, 20.0, noise).release() for _ in range(draws)]
    deviation = torch.tensor([basis.extra(released)["loss"] for released in releases]).std()
    assert float(deviation) == pytest.approx(ratio * sigma * most / 20, rel=0.1)


def test_it_goes_with_a_public_subspace_and_is_charged_once_a_step():
    public = (torch.randn(10, 4), torch.randint(0, 3, (10,)))
    private = trainer(BesideLoss(PublicEigenspace(public, 3), bound=0.3), noise_multiplier=1.0, noise=SeededNoise(0))
    seen: list[float] = []
    private.fit(data(), on_step=lambda step: seen.append(private.released.extra["loss"]))
    assert private.account.steps == 2
    assert len(set(seen)) == 2


def test_the_subspace_supplies_the_matching_rule_and_must_be_clipped_in_its_coordinates():
    assert Method("own", subspace=BesideLoss(Ambient(), 1.0, ratio=3.0)).clip_rule == UpdateAndLoss(3.0, Flat())
    inner = gep(data(), 2, residual=0.2)
    both = dataclasses.replace(inner, subspace=BesideLoss(inner.subspace, 1.0), clip=Automatic())
    assert both.clip_rule == UpdateAndLoss(2.5, EmbeddingAndResidual(0.2, Automatic()))
    with pytest.raises(SettingError, match="route = 'after clipping' is invalid; expected ProjectThenClip"):
        dataclasses.replace(pdp(data()), subspace=BesideLoss(Ambient(), 1.0))


@pytest.mark.parametrize("rule", [UpdateAndLoss(), EmbeddingAndResidual(), Fair(inner=UpdateAndLoss())])
@pytest.mark.parametrize("space", [Ambient(), BesideLoss(Ambient(), 1.0)])
def test_a_rule_that_a_subspace_supplies_is_refused_as_the_rule_of_a_method(rule, space):
    with pytest.raises(SettingError, match=r"clip = .* expected the rule for one part of an update"):
        Method("own", subspace=space, clip=rule)


def test_a_held_basis_is_clipped_by_the_rule_of_the_subspace_that_made_it():
    method = gep(data(), 2)
    held = Held(method.subspace.basis(StepContext(nn.Linear(4, 3), LOSS, 0, 1, 1, SeededNoise(0))), method.subspace, "")
    assert dataclasses.replace(method, subspace=held).clip_rule == method.clip_rule
    assert held.public is method.public
    with pytest.raises(SettingError, match="route"):
        dataclasses.replace(method, subspace=held, route=ClipThenProject())


def test_a_trainer_notices_that_another_basis_is_held():
    private = trainer(BesideLoss(Ambient(), bound=0.3), steps=4)
    model = private.model
    for number in range(4):
        public = (torch.randn(2, 4) + number, torch.randint(0, 3, (2,)))
        context = StepContext(model, LOSS, 0, 1, 1, SeededNoise(0))
        space = PublicEigenspace(public, 1)
        private.method = Method("held", subspace=Held(space.basis(context), space, "round"))
        assert private.engine._current_basis() is private.method.subspace.held
