"""Augmentation multiplicity: the mean gradient of several views of a record, clipped once."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gnomon
from gnomon.clipping import Automatic, Flat, PerLayer
from gnomon.errors import SettingError, StateError
from gnomon.federated.strategies.contrastive import ContrastiveUpdate, WithFeatures
from gnomon.ledger import Ledger
from gnomon.methods import METHODS, CropAndFlip, Method, Views, dp_sgd, gep, pcdp, pdp, rpcdp, rpdp, rsdp
from gnomon.methods.views import record_keys, uniform
from gnomon.release import Door, SeededNoise
from gnomon.runs.audit import trainer_to_audit
from gnomon.runs.builders import build_method, build_trainer
from gnomon.runs.config import TrainConfig
from gnomon.training.checkpoint import read_checkpoint, restore_checkpoint, save_checkpoint
from gnomon.training.checks.model import NotPrivate
from gnomon.updates import gradients
from tests.helpers import LOSS, trainer
from tests.methods.networks import D

VIEWS = Views(4, CropAndFlip(2))


def network() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Conv2d(4, 4, 2), nn.Flatten(),
            nn.Linear(16, 3),
        ).to(D)  # fmt: skip


def images(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, 1, 6, 6, generator=draw, dtype=D), torch.randint(0, 3, (count,), generator=draw)


def loop(model: nn.Module, views: Views, inputs: Tensor, targets: Tensor, step: int = 0) -> Tensor:
    """The (B, p) matrix of mean gradients, one record and one view at a time."""
    rows = []
    for record in range(len(inputs)):
        x, y = views.of(inputs[record : record + 1], targets[record : record + 1], step)
        singles = []
        for view in range(len(x)):
            loss = LOSS(model(x[view : view + 1]), y[view : view + 1]).sum()
            grads = torch.autograd.grad(loss, list(model.parameters()))
            singles.append(torch.cat([grad.flatten() for grad in grads]))
        rows.append(torch.stack(singles).mean(0))
    return torch.stack(rows)


def run(method: Method, data, *, sigma=0.0, steps=1, model=None, **settings):
    """Return a Trainer after some full-batch steps on a fresh network."""
    model = network() if model is None else model
    run = gnomon.Trainer(
        model, LOSS, torch.optim.SGD(model.parameters(), lr=1.0), method=method, sampler=gnomon.accounting.FullBatch(),
        expected_batch_size=1, noise_multiplier=sigma, target_delta=1e-5, steps=steps, progress=False,
        **({"noise": SeededNoise(0), "max_grad_norm": 0.5} | settings),
    )  # fmt: skip
    run.fit(data)
    return run


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


# -- the views ---------------------------------------------------------------------------------------


def test_crops_and_flips_equal_padding_cropping_and_flipping_one_image():
    x, augment = torch.randn(40, 3, 9, 7), CropAndFlip(3)
    keys = record_keys(x, 0)
    down, right, flip = (uniform(keys, count, number) for number, count in enumerate((7, 7, 2)))
    padded, found = F.pad(x, [3] * 4, mode="reflect"), augment(x, keys)
    for i in range(len(x)):
        crop = padded[i, :, down[i] : down[i] + 9, right[i] : right[i] + 7]
        assert torch.equal(found[i], crop.flip(-1) if flip[i] else crop)
    assert len(set(zip(down.tolist(), right.tolist(), flip.tolist(), strict=True))) > 30


def test_the_draws_of_a_key_are_uniform_and_independent():
    keys = record_keys(torch.arange(20_000.0)[:, None], 0)  # numbers that differ in a few bits
    table = torch.zeros(9, 2)
    table.index_put_((uniform(keys, 9, 0), uniform(keys, 2, 2)), torch.ones(len(keys)), accumulate=True)
    expected = len(keys) / 18
    assert float(((table - expected) ** 2 / expected).sum()) < 45  # 17 degrees of freedom: p > 0.0002
    assert len(keys.unique()) == len(keys)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8, torch.bool, torch.bfloat16])
def test_the_views_of_a_record_do_not_depend_on_the_other_records_or_its_row(dtype):
    x, y = (3 * torch.rand(7, 3, 8, 8)).to(dtype), torch.arange(7)
    whole, order = VIEWS.of(x, y, step=3), torch.tensor([5, 2, 6])
    some = VIEWS.of(x[order], y[order], step=3)
    for all_views, few_views in zip(whole, some, strict=True):
        assert torch.equal(all_views.unflatten(0, (7, 4))[order], few_views.unflatten(0, (3, 4)))


def test_views_differ_between_steps_records_views_and_seeds():
    x = torch.randn(1, 1, 12, 12).expand(5, 1, 12, 12) + torch.arange(5)[:, None, None, None] * 1e-6
    views = Views(8, CropAndFlip(4))
    places = [record_keys(x, 0)]
    every = [views.of(x, torch.zeros(5), step)[0] for step in range(4)]
    every.append(Views(8, CropAndFlip(4), seed=1).of(x, torch.zeros(5))[0])
    differ = sum(not torch.equal(a, b) for a, b in zip(every[0], every[1], strict=True))
    assert differ > 30  # of 40
    assert len({tuple(image.flatten().tolist()) for part in every for image in part}) > 150  # of 200
    assert len(places[0].unique()) == 5
    assert torch.equal(views.of(x, torch.zeros(5), 2)[0], every[2])


# -- the update --------------------------------------------------------------------------------------


@pytest.mark.parametrize("views", [VIEWS, Views(3), Views(1, CropAndFlip(2)), Views(2, CropAndFlip(1, flip=False), 5)])
def test_the_update_is_the_mean_gradient_of_the_views_of_one_record(views):
    model, (x, y) = network(), images(5)
    updates = views(model, LOSS, x, y, step=2)
    expected = loop(model, views, x, y, step=2)
    assert len(updates) == 5
    torch.testing.assert_close(updates.dense(), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(updates.norms(), expected.norm(dim=1), rtol=1e-10, atol=1e-12)
    vx, vy = views.of(x, y, 2)
    torch.testing.assert_close(updates.losses, LOSS(model(vx), vy).detach().view(5, -1).mean(1))
    w = torch.linspace(-1, 2, 5, dtype=D)
    total = torch.cat([part.flatten() for part in updates.weighted_sum(w).values()])
    torch.testing.assert_close(total, w @ expected, rtol=1e-10, atol=1e-12)


def test_one_view_without_augmentation_is_the_gradient_to_the_bit():
    model, (x, y) = network().float(), images(5)
    plain, one = gradients(model, LOSS, x.float(), y), Views(1)(model, LOSS, x.float(), y)
    assert torch.equal(plain.dense(), one.dense())
    assert torch.equal(plain.norms(), one.norms())
    assert torch.equal(plain.losses, one.losses)
    for name, part in plain.weighted_sum(torch.rand(5)[torch.arange(5)] * 0 + 0.3).items():
        assert torch.equal(part, one.weighted_sum(torch.full((5,), 0.3))[name])
    found, expected = (weights(run(method, images(8), sigma=1.0).model) for method in (with_views(Views(1)), dp_sgd()))
    assert torch.equal(found, expected)


def test_no_records_have_no_views():
    assert len(VIEWS(network(), LOSS, *(part[:0] for part in images(3)))) == 0


def with_views(views: Views, method: Method | None = None) -> Method:
    return dataclasses.replace(method or dp_sgd(), update=views)


PUBLIC = images(9, seed=5)
METHODS_WITH_SUBSPACES = {
    "dp-sgd": dp_sgd(),
    "automatic": dp_sgd(clip=Automatic()),
    "per-layer": dp_sgd(clip=PerLayer()),
    "pre-noise": dp_sgd(pre_noise=0.1),
    "pcdp": pcdp(PUBLIC, 4),
    "pcdp-per-tensor": pcdp(PUBLIC, 4, per_tensor=True),
    "pdp": pdp(PUBLIC, 4),
    "rpdp": rpdp(6),
    "rpcdp": rpcdp(6),
    "rsdp": rsdp(0.4),
    "gep": gep(PUBLIC, 4),
}


@pytest.mark.parametrize("name", METHODS_WITH_SUBSPACES)
def test_views_compose_with_every_subspace_and_clip_rule_and_keep_the_bound(name):
    """One record more moves the sum of a step by at most the bound."""
    method, (x, y) = with_views(VIEWS, METHODS_WITH_SUBSPACES[name]), images(8)
    x[-1] *= 100
    deviation = []
    for data in ((x, y), (x[:-1], y[:-1])):
        t = run(dataclasses.replace(method, pre_noise=0.0), data)
        released = t.released.coordinates
        deviation.append(torch.cat([part.flatten() for part in released.values()]))
    assert float((deviation[0] - deviation[1]).norm()) <= 0.5 * (1 + 1e-6)
    assert float((deviation[0] - deviation[1]).norm()) > 0.01
    run(method, (x, y), sigma=1.0)


def test_pcdp_with_views_equals_the_dense_computation():
    (x, y), model = images(8), network()
    v = torch.linalg.svd(gradients(model, LOSS, *PUBLIC).dense(), full_matrices=False).Vh[:4].T
    coordinates = loop(model, VIEWS, x, y) @ v
    clipped = coordinates * (0.05 / coordinates.norm(dim=1, keepdim=True)).clamp_max(1.0)
    found = weights(run(with_views(VIEWS, pcdp(PUBLIC, 4)), (x, y), max_grad_norm=0.05).model) - weights(model)
    torch.testing.assert_close(found, -v @ clipped.sum(0), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("most", [None, 1, 3])
def test_physical_batches_count_records_and_change_nothing(most):
    seen = []

    class Watching(nn.Sequential):
        def forward(self, x):
            seen.append(len(x))
            return super().forward(x)

    model = Watching(*network())
    found = weights(run(with_views(VIEWS), images(8), model=model, max_physical_batch_size=most, steps=2).model)
    torch.testing.assert_close(found, weights(run(with_views(VIEWS), images(8), steps=2).model))
    assert max(seen[-2:]) == 4 * (most or 8)  # the check of the model before them takes eight records at a time


# -- steps and restarts ------------------------------------------------------------------------------


def test_every_step_has_views_of_its_own():
    t = run(with_views(VIEWS), images(8), steps=3)
    model, before = network(), None
    for step in range(3):
        rows = loop(model, VIEWS, *images(8), step=step)
        total = (rows * (0.5 / rows.norm(dim=1, keepdim=True)).clamp_max(1.0)).sum(0)
        start = 0
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(total[start : start + p.numel()].view_as(p))
                start += p.numel()
        assert before is None or not torch.equal(total, before)
        before = total
    torch.testing.assert_close(weights(t.model), weights(model), rtol=1e-5, atol=1e-7)


def test_a_resumed_run_goes_on_with_the_views_of_its_step(tmp_path):
    class Noticing(Views):
        def of(self, inputs, targets, step=0):
            steps.append(step)
            return super().of(inputs, targets, step)

    def resumable():
        model = network()
        return trainer(
            model, method=with_views(Noticing(2, CropAndFlip(2))), steps=40, ledger=Ledger(tmp_path / "ledger.sqlite")
        )

    steps: list[int] = []
    first, data = resumable(), images(60)
    batches = first.batches(data)
    for _ in range(3):
        first.step(*next(batches))
    assert steps[-3:] == [0, 1, 2]
    save_checkpoint(first, tmp_path)
    second = resumable()
    taken = restore_checkpoint(second, read_checkpoint(tmp_path), data)
    second.step(*next(second.batches(data)))
    assert taken > 2
    assert steps[-1] == taken
    other = trainer(
        network(), method=with_views(Noticing(3, CropAndFlip(2))), steps=40, ledger=Ledger(tmp_path / "ledger.sqlite")
    )
    with pytest.raises(ValueError, match="mean gradient of 3 views"):
        restore_checkpoint(other, read_checkpoint(tmp_path), data)


def test_a_preview_leaves_the_views_of_the_run_alone():
    t = run(with_views(VIEWS), images(8), steps=3)
    view = t.engine.preview(*images(4), step=1)
    torch.testing.assert_close(view.updates.dense(), loop(t.model, VIEWS, *images(4), step=1), rtol=1e-8, atol=1e-10)


# -- planted bugs ------------------------------------------------------------------------------------


class Centring:
    """Takes the mean image of the batch off: each view depends on all records."""

    name = "centring"

    def __call__(self, inputs, keys):
        return inputs - inputs.mean(0)


class Sharing:
    """Gives every record the views of the first one."""

    name = "sharing"

    def __call__(self, inputs, keys):
        return CropAndFlip(2)(inputs, keys[:1].expand(len(keys)))


class Remembering:
    """Takes off the mean of the images of earlier batches."""

    name = "remembering"

    def __init__(self):
        self.mean = torch.zeros(1, 6, 6, dtype=D)

    def __call__(self, inputs, keys):
        self.mean = 0.9 * self.mean + 0.1 * inputs.mean(0)
        return inputs - self.mean


class Mixup:
    """Mixes each image with its neighbour in the batch."""

    name = "mixup"

    def __call__(self, inputs, keys):
        return 0.9 * inputs + 0.1 * inputs.roll(4, 0)


class Counting:
    """Counts images: this changes no view, but stays in the augmentation without noise."""

    name = "counting"

    def __init__(self):
        self.seen = 0

    def __call__(self, inputs, keys):
        self.seen += len(inputs)
        return inputs


class Drawing:
    """Draws a number for each row, which depends on the place of a record in its batch."""

    name = "drawing"

    def __init__(self, draw):
        self.draw = draw

    def __call__(self, inputs, keys):
        return inputs * (1 + self.draw(len(inputs)))[:, None, None, None]


@pytest.mark.parametrize(
    "draw",
    [
        lambda count: torch.rand(count, dtype=D),
        lambda count: torch.rand(count, dtype=D, generator=OWN),
        lambda count: torch.tensor([random.random() for _ in range(count)], dtype=D),
    ],
    ids=["torch", "own generator", "python"],
)
def test_an_augmentation_that_draws_from_a_generator_is_refused(draw):
    t = trainer(network(), method=with_views(Views(2, Drawing(draw))))
    with pytest.raises((SettingError, NotPrivate), match=r"from the keys|two runs"):
        t.fit(images(60))
    assert t.account.steps == 0


OWN = torch.Generator().manual_seed(0)


@pytest.mark.parametrize("planted", [Centring, Sharing, Remembering, Mixup])
@pytest.mark.parametrize("views", [1, 4])
def test_an_augmentation_that_mixes_records_is_refused_before_the_first_release(planted, views):
    t = trainer(network(), method=with_views(Views(views, planted())))
    with pytest.raises(NotPrivate, match=r"mixes samples|two runs"):
        t.fit(images(60))
    assert t.account.steps == 0


def test_an_augmentation_that_keeps_state_is_refused():
    t = trainer(network(), method=with_views(Views(2, Counting())))
    with pytest.raises(NotPrivate, match="seen"):
        t.fit(images(60))


def test_a_model_that_mixes_records_is_refused_with_views_too():
    class Batchwise(nn.Sequential):
        def forward(self, x):
            return super().forward(x - 0.2 * x.mean(0))

    with pytest.raises(NotPrivate, match="mixes samples"):
        trainer(Batchwise(*network()), method=with_views(VIEWS)).fit(images(60))


def test_another_augmentation_is_checked_before_it_is_used():
    t = trainer(network(), method=with_views(VIEWS))
    batches = t.batches(images(60))
    t.step(*next(batches))
    t.method = with_views(Views(2, CropAndFlip(1)))  # the same code with other numbers
    t.step(*next(batches))
    t.method = with_views(Views(4, Centring()))
    with pytest.raises(StateError, match="replaced"):
        t.step(*next(batches))


def test_an_update_that_needs_the_number_of_the_step_gets_it_in_every_check():
    def update(model, loss, inputs, targets, *, step):
        steps.append(step)
        return gradients(model, loss, inputs, targets)

    steps: list[int] = []
    run(Method("own", update=update), images(8), steps=2)
    assert (steps[0], steps[-2:]) == (0, [0, 1])


def test_an_augmentation_that_loses_rows_is_refused():
    class Losing:
        name = "losing"

        def __call__(self, inputs, keys):
            return inputs[1:]

    with pytest.raises(SettingError, match="losing"):
        Views(2, Losing())(network(), LOSS, *images(3))


def test_a_door_clips_the_mean_of_the_views_and_not_each_view():
    model, (x, y) = network(), images(6)
    updates = VIEWS(model, LOSS, x, y)
    bound = 0.1 * float(updates.norms().min())
    shape = {name: p.detach() for name, p in model.named_parameters()}
    door = Door(shape, max_grad_norm=bound, noise_multiplier=0.0, expected_batch_size=1, noise=SeededNoise(0))
    door.admit(updates, Flat())
    total = torch.cat([part.flatten() for part in door.release().values()])
    rows = loop(model, VIEWS, x, y)
    torch.testing.assert_close(total, (bound * rows / rows.norm(dim=1, keepdim=True)).sum(0), rtol=1e-5, atol=1e-9)


# -- settings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Views(0), "views = 0 is invalid; expected a whole number, 1 or above"),
        (lambda: Views(1.5), "views = 1.5"),
        (lambda: Views(2, "crop-and-flip"), "augmentation"),
        (lambda: Views(2, None, -1), "seed"),
        (lambda: CropAndFlip(-1), "padding"),
        (lambda: VIEWS(nn.Linear(4, 2), LOSS, torch.randn(3, 4), torch.zeros(3).long()), "expected images"),
        (lambda: CropAndFlip(4)(torch.zeros(1, 1, 4, 4), torch.zeros(1).long()), "of more than 4 pixels"),
        (lambda: gradients(network(), LOSS, *images(5), views=2), "views = 2 is invalid; expected a divisor"),
    ],
)
def test_wrong_settings_are_named(make, message):
    with pytest.raises(SettingError, match=message):
        make()


def config(**settings) -> TrainConfig:
    return TrainConfig.from_dict({"data": "digits", "model": "cnn-small", "epochs": 1.0} | settings)


def test_the_settings_make_the_update_of_every_method():
    for name in METHODS:
        if "comp" in name or name == "dp-lsgd":
            continue
        method = build_method(
            config(method=name, views=3, augmentation="crop-and-flip"), gnomon.data.load("digits").train[:20]
        )
        assert method.update == Views(3, CropAndFlip())
        assert "mean gradient of 3 views (random crops with padding 4 and flips)" in method.describe()
    one = build_method(config(augmentation="crop-and-flip"), gnomon.data.load("digits").train[:0])
    assert one.update == Views(1, CropAndFlip())
    assert build_method(config(), gnomon.data.load("digits").train[:0]).update is gradients


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"views": 4}, "views = 4 has no effect without an augmentation"),
        ({"views": 0, "augmentation": "crop-and-flip"}, "views = 0"),
        ({"augmentation": "crop"}, "augmentation = 'crop' is invalid; expected one of none, crop-and-flip"),
        ({"views": 4, "augmentation": "crop-and-flip", "local-steps": 2}, "local steps"),
        ({"augmentation": "crop-and-flip", "method": "dp-lsgd"}, "local steps"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        build_method(config(**settings), gnomon.data.load("digits").train[:0])


def test_inputs_that_are_not_images_are_refused_before_the_run():
    source = gnomon.data.load("digits")
    table = dataclasses.replace(
        source,
        train=gnomon.data.Records(source.train.inputs.flatten(1), source.train.targets),
        test=gnomon.data.Records(source.test.inputs.flatten(1), source.test.targets),
        input_shape=(64,),
    )
    settings = config(model="mlp", views=2, augmentation="crop-and-flip")
    with pytest.raises(SettingError, match="images"):
        build_trainer(settings, table, table.train[:0], progress=False)


def test_gnomon_train_uses_the_views_and_states_them():
    source = gnomon.data.load("digits")
    t = build_trainer(config(views=2, augmentation="crop-and-flip"), source, source.train[:0], progress=False)
    t.check(source.train)
    assert "mean gradient of 2 views" in str(t.statement().to_dict())


def test_an_audit_of_the_probe_has_equal_views():
    audited, records = trainer_to_audit(config(model=None, views=3, augmentation="crop-and-flip"))
    assert records is None
    assert audited.method.update == Views(3)


def test_moon_takes_views_too():
    update = ContrastiveUpdate(1.0, 0.5, *(WithFeatures(network()) for _ in range(3)), inner=VIEWS)
    updates = [update(update.local.model, LOSS, *images(5), step=step) for step in (0, 0, 1)]
    assert len(updates[0]) == 5
    assert update.watched is VIEWS.augmentation
    assert torch.equal(updates[0].norms(), updates[1].norms())
    assert not torch.equal(updates[0].norms(), updates[2].norms())
