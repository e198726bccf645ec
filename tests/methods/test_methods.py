"""Projected methods: they equal the dense computation, keep the clip bound, and combine freely."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
from torch import nn

import gnomon
from gnomon.clipping import PSAC, Automatic, EmbeddingAndResidual, Flat, Normalised, PerLayer
from gnomon.errors import SettingError
from gnomon.methods import ClipThenProject, Method, dp_sgd, gep, pcdp, pdp, rpcdp, rpdp, rsdp
from gnomon.release import SeededNoise
from gnomon.release.door import lengths
from gnomon.subspaces import PublicEigenspace, RandomMask, RandomProjection, StepContext
from gnomon.subspaces.random_projection import fourier
from gnomon.updates import Updates, gradients
from tests.helpers import LOSS
from tests.methods.networks import MODELS, D, setting


def trained(model, method: Method, data, *, steps=1, sigma=0.0, bound=0.05, lr=1.0, seed=0):
    """Return the change of the parameters after some full-batch steps."""
    before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    trainer = gnomon.Trainer(
        model, LOSS, torch.optim.SGD(model.parameters(), lr=lr), method=method, max_grad_norm=bound,
        sampler=gnomon.accounting.FullBatch(), expected_batch_size=1, noise_multiplier=sigma, target_delta=1e-5,
        steps=steps, noise=SeededNoise(seed), progress=False,
    )  # fmt: skip
    trainer.fit(data)
    return torch.cat([p.detach().flatten() for p in model.parameters()]) - before


def clipped(rows, bound):
    return rows * (bound / rows.norm(dim=1, keepdim=True)).clamp_max(1.0)


def top(public, rank):
    return torch.linalg.svd(public, full_matrices=False).Vh[:rank].T


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rank", [1, 4, 9])
def test_pcdp_equals_the_dense_singular_value_decomposition(name, rank):
    model, private, public = setting(name)
    g, h = (gradients(model, LOSS, *data).dense() for data in (private, public))
    v = top(h, rank)
    expected = -v @ clipped(g @ v, 0.05).sum(0)
    torch.testing.assert_close(trained(model, pcdp(public, rank), private), expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_pdp_equals_the_dense_singular_value_decomposition(name):
    model, private, public = setting(name)
    g, h = (gradients(model, LOSS, *data).dense() for data in (private, public))
    v = top(h, 4)
    expected = -v @ (v.T @ clipped(g, 0.05).sum(0))
    torch.testing.assert_close(trained(model, pdp(public, 4), private), expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_pcdp_per_tensor_equals_a_decomposition_of_each_tensor(name):
    model, private, public = setting(name)
    sizes = [p.numel() for p in model.parameters()]
    g, h = (gradients(model, LOSS, *data).dense().split(sizes, 1) for data in (private, public))
    bases = [torch.eye(n, dtype=D) if n <= 5 else top(part, 5) for n, part in zip(sizes, h, strict=True)]
    clipped_sum = clipped(torch.cat([a @ v for a, v in zip(g, bases, strict=True)], 1), 0.05).sum(0)
    lifted = [v @ y for v, y in zip(bases, clipped_sum.split([v.shape[1] for v in bases]), strict=True)]
    found = trained(model, pcdp(public, 5, per_tensor=True), private)
    # directions outside the span of the public gradients are dropped here and arbitrary in the dense computation
    if name != "transformer":
        torch.testing.assert_close(found, -torch.cat(lifted), rtol=1e-5, atol=1e-9)
    assert torch.isfinite(found).all()


def test_the_paper_s_cnn_has_490_coordinates_per_tensor():
    model = gnomon.models.build("cnn", (1, 28, 28), 10)
    public = (torch.randn(120, 1, 28, 28), torch.randint(0, 10, (120,)))
    space = PublicEigenspace(public, 100, per_tensor=True)
    basis = space.basis(StepContext(model, LOSS, 0, 40, 3200, SeededNoise(0)))
    assert basis.rank == 490


@pytest.mark.parametrize("method", [pcdp, pdp])
def test_a_subspace_of_everything_is_dp_sgd(method):
    torch.manual_seed(0)
    start = nn.Linear(2, 2).to(D)
    public = (torch.randn(40, 2, dtype=D), torch.randint(0, 2, (40,)))
    private = (torch.randn(12, 2, dtype=D), torch.randint(0, 2, (12,)))
    # softmax gradients of two classes span 3 of 6 dimensions, for public and private records alike
    found, expected = (trained(copy.deepcopy(start), one, private) for one in (method(public, 6), dp_sgd()))
    torch.testing.assert_close(found, expected)


def test_a_rank_above_the_numerical_one_is_cut_to_it():
    model, _, public = setting("mlp")
    twice = (public[0].repeat(2, 1), public[1].repeat(2))
    basis = PublicEigenspace(twice, 500).basis(StepContext(model, LOSS, 0, 1, 1, SeededNoise(0)))
    assert basis.rank == 9
    torch.testing.assert_close(basis.dense().T @ basis.dense(), torch.eye(9, dtype=D), rtol=0, atol=1e-6)


def test_the_effective_rank_is_reported():
    model, private, public = setting("mlp")
    trainer = gnomon.Trainer(
        model, LOSS, torch.optim.SGD(model.parameters(), lr=0.1), method=pcdp(public, 500), sample_rate=0.5,
        expected_batch_size=6, noise_multiplier=1.0, target_delta=1e-5, steps=2, progress=False,
    )  # fmt: skip
    assert trainer.fit(private).history[-1]["rank"] == 9


def test_the_rank_can_be_chosen_by_energy():
    model, _, public = setting("mlp")
    h = gradients(model, LOSS, *public).dense()
    values = torch.linalg.svdvals(h).square()
    energy = values.cumsum(0) / values.sum()
    context = StepContext(model, LOSS, 0, 1, 1, SeededNoise(0))
    for fraction in (0.3, 0.9):
        rank = PublicEigenspace(public, fraction).basis(context).rank
        assert energy[rank - 1] >= fraction
        assert rank == 1 or energy[rank - 2] < fraction


@pytest.mark.parametrize("per_tensor", [False, True])
def test_released_noise_has_the_covariance_of_the_projector(per_tensor):
    model, _, public = setting("mlp", public=6)
    method = pcdp(public, 4, per_tensor=per_tensor)
    space = method.subspace
    context = StepContext(model, LOSS, 0, 1, 1, SeededNoise(0))
    basis = space.basis(context)
    sizes = [value.numel() for value in basis.like.values()]

    def lifted(flat):
        parts = dict(zip(basis.like, flat.split(sizes), strict=True))
        return torch.cat([x.flatten() for x in basis.lift(parts).values()])

    eye = torch.eye(basis.rank, dtype=D)
    v = torch.stack([lifted(e) for e in eye], 1)
    torch.testing.assert_close(v.T @ v, eye, rtol=0, atol=1e-8)
    sigma, bound, n = 2.0, 0.1, 4000
    noise, draws = SeededNoise(1), []
    for _ in range(n):
        released = gnomon.release.Door(basis.like, bound, sigma, 1.0, noise).release()
        draws.append(lifted(torch.cat([value.flatten() for value in released.values()])))
    found = torch.stack(draws).T @ torch.stack(draws) / n
    expected = (sigma * bound) ** 2 * v @ v.T
    assert (found - expected).norm() / expected.norm() < 5 * math.sqrt((basis.rank + 1) / n)


def every_method(public):
    spaces = {
        "dp-sgd": lambda clip: dp_sgd(clip),
        "pdp": lambda clip: pdp(public, 4, clip),
        "pcdp": lambda clip: pcdp(public, 4, clip),
        "pcdp per tensor": lambda clip: pcdp(public, 4, clip, per_tensor=True),
        "rpdp": lambda clip: rpdp(10, clip=clip),
        "rpcdp": lambda clip: rpcdp(10, clip=clip),
        "rpcdp per tensor": lambda clip: rpcdp(5, clip=clip, per_tensor=True),
        "rsdp": lambda clip: rsdp(0.4, clip=clip),
        "gep": lambda clip: gep(public, 4, clip=clip),
        "pre-noise": lambda clip: pcdp(public, 4, clip, pre_noise=0.5),
    }
    clips = [Flat(), Automatic(), Normalised(), PSAC()]
    return [(f"{n}, {c.name}", make(c)) for (n, make), c in itertools.product(spaces.items(), clips)]


@pytest.mark.parametrize("index", range(40))
def test_neighbouring_batches_move_the_release_by_at_most_the_bound(index):
    model, (x, y), public = setting("mlp")
    name, method = every_method(public)[index]
    state = {k: v.clone() for k, v in model.state_dict().items()}
    x = x.clone()
    x[0] *= 1e3  # an outlier
    moved = []
    for keep in (slice(0, None), slice(1, None)):
        model.load_state_dict(state)
        moved.append(trained(model, method, (x[keep], y[keep]), bound=0.05))
    if "pre-noise" in name:
        return  # noise before clipping differs between the batches; the tests of the door cover the bound
    scale = 1.0 if "gep" not in name else math.sqrt(2)  # the lift scales the embedding back
    assert (moved[0] - moved[1]).norm() <= 0.05 * scale * (1 + 1e-6)


@pytest.mark.parametrize("index", range(40))
def test_every_combination_trains_with_noise(index):
    model, private, public = setting("mlp")
    _, method = every_method(public)[index]
    assert torch.isfinite(trained(model, method, private, steps=3, sigma=1.0)).all()


def test_with_a_tiny_bound_only_the_product_of_rate_and_bound_matters():
    changes = []
    for bound, lr in ((1e-4, 1.0), (1e-5, 10.0)):
        model, private, public = setting("mlp")
        changes.append(trained(model, pcdp(public, 4), private, bound=bound, lr=lr))
    torch.testing.assert_close(*changes, rtol=1e-6, atol=1e-12)


def crafted(method: Method, x, y, model, loss, bound: float = 1.0) -> float:
    """Return how far the first record moves the noise-free sum, in units of the clip bound."""
    state = copy.deepcopy(model.state_dict())
    moved = []
    for keep in (slice(0, None), slice(1, None)):
        model.load_state_dict(state)
        before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
        trainer = gnomon.Trainer(
            model, loss, torch.optim.SGD(model.parameters(), lr=1.0), method=method, max_grad_norm=bound,
            sampler=gnomon.accounting.FullBatch(), expected_batch_size=1, noise_multiplier=0.0, target_delta=1e-5,
            steps=1, noise=SeededNoise(0), progress=False,
        )  # fmt: skip
        trainer._step([(x[keep], y[keep])])
        moved.append(torch.cat([p.detach().flatten() for p in model.parameters()]) - before)
    return float((moved[0] - moved[1]).double().norm()) / bound


def test_a_huge_pixel_cannot_hide_behind_a_mask():
    torch.manual_seed(0)
    x, y = torch.randn(4, 2), torch.tensor([1, 0, 1, 0])
    x[0] = 3e38
    assert crafted(rsdp(0.3), x, y, nn.Linear(2, 2), LOSS) <= 1.001


def test_blank_inputs_keep_their_bias_gradients_under_a_mask():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    updates = gradients(model, LOSS, torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]))
    masked = RandomMask(0.5).basis(StepContext(model, LOSS, 0, 1, 1, SeededNoise(0))).coordinates(updates)
    assert torch.isfinite(masked.norms()).all()
    assert masked.norms_by_parameter()[:, 1].sum() > 0


def test_a_loss_in_double_precision_does_not_widen_what_a_cancelling_record_can_do():
    torch.manual_seed(0)
    model = nn.Linear(60, 60, bias=False)
    token, error = torch.randn(60) * 1e4, torch.rand(60) * 1e12 + 1e12
    x = torch.stack([token.expand(2, 60), torch.randn(2, 60)])
    y = torch.stack([torch.stack([error, -error]), torch.zeros(2, 60)])
    loss = lambda o, t: (o.double() - t).square().flatten(1).sum(1)
    assert crafted(dp_sgd(), x, y, model, loss) <= 1.001


def test_a_weight_above_one_cannot_overflow_a_finite_contribution():
    x, y = torch.full((1, 3), 1.2e-38), torch.full((1, 1), -1.5e38)
    model = nn.Linear(3, 1, bias=False)
    loss = lambda o, t: (o - t).square().sum(1)
    found = crafted(dp_sgd(Normalised()), torch.cat([x, x]), torch.cat([y, 0 * y]), model, loss, 10.0)
    assert math.isfinite(found)
    assert found <= 1.001


def test_own_subspaces_with_public_records_are_checked_for_overlap():
    model, private, _ = setting("mlp")

    class Own(PublicEigenspace):
        pass

    method = Method("own", subspace=Own((private[0][:3], private[1][:3]), 2))
    with pytest.raises(ValueError, match="occur in the private set"):
        trained(model, method, private)


def test_an_embedding_supplies_its_own_clip_rule_and_must_be_clipped_in_its_coordinates():
    _, _, public = setting("mlp")
    space = gep(public, 2).subspace
    for rule in (Flat(), Automatic()):
        assert Method("own", subspace=space, clip=rule).clip_rule == EmbeddingAndResidual(space.residual, rule)
    with pytest.raises(SettingError, match="route = 'after clipping' is invalid; expected ProjectThenClip"):
        Method("own", subspace=space, route=ClipThenProject())


def test_stages_that_are_no_stages_are_refused_by_name():
    for settings in ({"subspace": "ambient"}, {"clip": "flat"}, {"route": "before"}):
        with pytest.raises(SettingError, match=f"^{next(iter(settings))} = "):
            Method("own", **settings)


def test_per_layer_clipping_bounds_each_tensor_of_a_per_tensor_subspace():
    model, private, public = setting("mlp")
    start = copy.deepcopy(model.state_dict())
    flat = trained(model, pcdp(public, 4, Flat(), per_tensor=True), private)
    model.load_state_dict(start)
    layered = trained(model, pcdp(public, 4, PerLayer(), per_tensor=True), private)
    assert not torch.allclose(flat, layered)


def test_public_records_without_any_finite_gradient_are_refused():
    model, private, (x, y) = setting("mlp")
    with pytest.raises(ValueError, match="public has no record with a finite gradient"):
        trained(model, pcdp((x * math.nan, y), 2), private)


def test_the_statement_says_that_public_records_are_not_protected():
    model, _, public = setting("mlp")
    trainer = gnomon.Trainer(
        model, LOSS, torch.optim.SGD(model.parameters(), lr=0.1), method=pcdp(public, 2), sample_rate=0.5,
        expected_batch_size=6, noise_multiplier=1.0, target_delta=1e-5, steps=2, progress=False,
    )  # fmt: skip
    assert "9 records were used as public by the method and are NOT protected" in trainer.statement().text()


def test_public_records_that_are_private_too_are_refused():
    model, private, _ = setting("mlp")
    with pytest.raises(ValueError, match="public records occur in the private set"):
        trained(model, pcdp((private[0][:5], private[1][:5]), 2), private)


def test_projection_starts_at_its_epoch_and_is_renewed_at_its_interval():
    model, _, public = setting("mlp")
    space = PublicEigenspace(public, 2, every=3, start=1)
    keys = [space.key(StepContext(model, LOSS, step, 2, 8, SeededNoise(0))) for step in range(8)]
    assert keys == ["ambient", "ambient", 0, 1, 1, 1, 2, 2]


def test_a_random_projection_starts_at_its_epoch_and_is_dp_sgd_before():
    model, private, _ = setting("mlp")
    moments = [StepContext(model, LOSS, step, 2, 8, SeededNoise(0)) for step in range(4)]
    assert [RandomProjection(4, start=1).key(one) for one in moments] == ["ambient", "ambient", 2, 3]
    assert [RandomProjection(4, False, 1).key(one) for one in moments] == ["ambient", "ambient", 0, 0]
    state = copy.deepcopy(model.state_dict())
    found = {}
    for name, method in {"late": rpdp(4, start=1000), "now": rpdp(4), "none": dp_sgd()}.items():
        model.load_state_dict(state)
        found[name] = trained(model, method, private)
    torch.testing.assert_close(found["late"], found["none"])
    with pytest.raises(AssertionError):
        torch.testing.assert_close(found["now"], found["none"])


def test_public_blocks_are_disjoint_and_cover_everything():
    model, _, public = setting("mlp", public=8)
    space = PublicEigenspace(public, 2, blocks=4)
    seen = [space._chosen(8, StepContext(model, LOSS, step, 1, 4, SeededNoise(0))).tolist() for step in range(4)]
    assert sorted(itertools.chain(*seen)) == list(range(8))


def test_public_batches_are_drawn_anew():
    model, _, public = setting("mlp")
    noise = SeededNoise(0)
    space = PublicEigenspace(public, 2, batch=3)
    seen = [tuple(space._chosen(9, StepContext(model, LOSS, step, 1, 4, noise)).tolist()) for step in range(4)]
    assert len(set(seen)) > 1
    assert all(len(one) == 3 for one in seen)


def test_a_broken_public_record_is_left_out():
    model, private, (x, y) = setting("mlp")
    spoiled = x.clone()
    spoiled[2] = math.nan
    keep = [i for i in range(9) if i != 2]
    state = {k: v.clone() for k, v in model.state_dict().items()}
    one = trained(model, pcdp((spoiled, y), 4), private)
    model.load_state_dict(state)
    torch.testing.assert_close(one, trained(model, pcdp((x[keep], y[keep]), 4), private))


@pytest.mark.parametrize("size", [1, 2, 7, 8])
def test_the_random_projection_is_an_orthogonal_projector(size):
    rows = fourier(torch.eye(size, dtype=D))
    torch.testing.assert_close(rows @ rows.T, torch.eye(size, dtype=D))


def test_a_random_projection_keeps_its_share_of_a_vector_and_is_idempotent():
    model = nn.Linear(40, 20, bias=False).to(D)
    basis = RandomProjection(100).basis(StepContext(model, LOSS, 0, 1, 1, SeededNoise(0)))
    vector = {"weight": torch.randn(20, 40, dtype=D)}
    once = gnomon.subspaces.projected(basis, vector)
    torch.testing.assert_close(gnomon.subspaces.projected(basis, once), once)
    share = once["weight"].norm() ** 2 / vector["weight"].norm() ** 2
    assert 0.06 < share < 0.2  # about 100 / 800


def test_a_random_projection_of_each_tensor_leaves_small_ones_whole():
    model = nn.Linear(40, 20).to(D)
    basis = RandomProjection(100, per_tensor=True).basis(StepContext(model, LOSS, 0, 1, 1, SeededNoise(0)))
    assert {name: value.numel() for name, value in basis.like.items()} == {"weight": 100, "bias": 20}
    vector = {"weight": torch.randn(20, 40, dtype=D), "bias": torch.randn(20, dtype=D)}
    once = gnomon.subspaces.projected(basis, vector)
    torch.testing.assert_close(gnomon.subspaces.projected(basis, once), once)
    torch.testing.assert_close(once["bias"], vector["bias"])
    assert 0.06 < once["weight"].norm() ** 2 / vector["weight"].norm() ** 2 < 0.2  # about 100 / 800


def test_the_mask_is_common_drawn_by_chance_and_cools():
    model = nn.Linear(100, 50, bias=False).to(D)
    space = RandomMask(0.3)
    basis = space.basis(StepContext(model, LOSS, 0, 10, 100, SeededNoise(0)))
    kept = basis.lift({"weight": torch.ones(50, 100, dtype=D)})["weight"]
    assert abs(float(kept.mean()) - 0.7) < 0.05
    cooling = RandomMask(0.9, cooling=True)
    rates = [cooling.rate_at(StepContext(model, LOSS, step, 10, 100, SeededNoise(0))) for step in range(0, 100, 10)]
    assert rates[0] == 0.0
    assert rates[-1] == pytest.approx(0.9)
    assert rates == sorted(rates)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda p: PublicEigenspace(p, 0), "rank"),
        (lambda p: PublicEigenspace(p, 2.5), "rank"),
        (lambda p: PublicEigenspace(p, math.nan), "rank"),
        (lambda p: PublicEigenspace(p, 2, every=0), "every"),
        (lambda p: PublicEigenspace(p, 2, start=-1), "start"),
        (lambda p: PublicEigenspace(p, 2, blocks=100), "blocks"),
        (lambda p: RandomProjection(0), "rank"),
        (lambda p: RandomProjection(4, start=-1), "start"),
        (lambda p: RandomMask(1.0), "rate"),
        (lambda p: gep(p, 2, residual=-1), "residual"),
        (lambda p: Method("x", route="sideways"), "route"),
        (lambda p: dp_sgd(pre_noise=-1.0), "pre_noise"),
    ],
)
def test_bad_settings_are_refused_by_name(make, named):
    _, _, public = setting("mlp")
    with pytest.raises(SettingError, match=named):
        make(public)


@pytest.mark.parametrize("per_tensor", [False, True])
@pytest.mark.parametrize("size", [1e4, 1e7, 1e10])
def test_the_length_of_coordinates_covers_their_rounding(size, per_tensor):
    """Where huge terms of a record cancel, its coordinates are mostly rounding errors, which depend on its batch.

    Clipping must bound that as well: whatever the error is, it is a small part of the length that is clipped.
    """
    torch.manual_seed(0)
    model = nn.Linear(16, 12)
    loss = lambda outputs, targets: (outputs * targets).flatten(1).sum(1)
    public = torch.randn(8, 6, 16), torch.randn(8, 6, 12)
    first, second, error = torch.randn(16), torch.randn(16), torch.randn(12)
    tokens = torch.stack([size * first, size * second, -size * (first + second), torch.randn(16)])[None]
    targets = torch.stack([error, error, error, 1e-3 * error])[None]
    basis = PublicEigenspace(public, 5, per_tensor=per_tensor).basis(StepContext(model, loss, 0, 1, 1, SeededNoise(0)))
    seen = basis.coordinates(gradients(model, loss, tokens, targets))
    exactly = lambda *pair: gradients(model.to(D), loss, *(t.to(D) for t in pair))
    shared, record = exactly(*public), exactly(tokens, targets)
    if per_tensor:
        true = record.leaves["weight"].gram(shared.leaves["weight"]) @ basis.mixings["weight"].to(D)
    else:
        true = record.gram(shared) @ basis.mixing.to(D)
    leaf = next(iter(seen.leaves.values()))  # all coordinates, or those of the weight
    length = lengths(Updates({"seen": leaf}, seen.losses))[0, 0]
    assert float((leaf.dense().to(D) - true).norm()) <= 0.1 * float(length)


@pytest.mark.parametrize(
    "make",
    [
        lambda public: pcdp(public, 3),
        lambda public: pcdp(public, 3, per_tensor=True),
        lambda public: pdp(public, 3),
        lambda public: rpcdp(4),
        lambda public: rpcdp(4, per_tensor=True),
        lambda public: rsdp(0.3),
    ],
)
def test_a_model_of_two_precisions_takes_a_step(make):
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(6, 5), nn.Linear(5, 3).double()

        def forward(self, x):
            return self.head(self.body(x).tanh().double())

    torch.manual_seed(0)
    model = Two()
    public = torch.randn(9, 6), torch.randint(0, 3, (9,))
    trainer = gnomon.Trainer(
        model, LOSS, torch.optim.SGD(model.parameters(), lr=0.1), method=make(public), max_grad_norm=1.0,
        sample_rate=0.5, expected_batch_size=6, noise_multiplier=1.0, target_delta=1e-5, steps=6, progress=False,
    )  # fmt: skip
    before = [p.detach().clone() for p in model.parameters()]
    trainer.fit((torch.randn(12, 6), torch.randint(0, 3, (12,))))
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
