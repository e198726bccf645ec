"""The guarantees of the door, for any updates and any clip rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from gnomon.clipping import PSAC, Automatic, ClipRule, Flat, Normalised, PerLayer
from gnomon.errors import SettingError
from gnomon.release import Door, SecureNoise, SeededNoise
from gnomon.release.door import GRID_BITS, bounded
from gnomon.updates import Dense, Factored, Updates, gradients

few = settings(max_examples=30, deadline=None, derandomize=True)
RULES = [Flat(), Automatic(), Normalised(1.0), PSAC(), PerLayer()]
rules = st.sampled_from(RULES)
bounds = st.sampled_from([0.01, 1.0, 50.0])
SHAPES = {"a": (3, 2), "b": (4,), "c": ()}


class Recording:
    """A noise source that records how many values each call asks for."""

    private = False

    def __init__(self, events: list[object] | None = None, error: Exception | None = None) -> None:
        self.events = [] if events is None else events
        self.error = error
        self._inner = SeededNoise(0)

    def normal(self, count: int) -> Tensor:
        self.events.append(count)
        if self.error:
            raise self.error
        return self._inner.normal(count)

    def uniform(self, count: int) -> Tensor:
        raise AssertionError("the door needs no uniforms")


def split(rows: Tensor) -> Updates:
    """Return a (B, 11) matrix as the updates of three parameters."""
    leaves, start = {}, 0
    for name, shape in SHAPES.items():
        count = math.prod(shape)
        leaves[name] = Dense(rows[:, start : start + count].reshape(len(rows), *shape))
        start += count
    return Updates(leaves, rows.new_zeros(len(rows)))


WIDTH = sum(math.prod(shape) for shape in SHAPES.values())


def open_door(bound: float = 1.0, dtype: torch.dtype = torch.float64, **settings: object) -> Door:
    like = {name: torch.zeros(shape, dtype=dtype) for name, shape in SHAPES.items()}
    chosen = {"noise_multiplier": 0.0, "expected_batch_size": 1.0, "noise": SeededNoise(0)} | settings
    return Door(like, bound, **chosen)  # type: ignore[arg-type]


def flat(released: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten() for value in released.values()])


def summed(rows: Tensor, rule: object, bound: float, sizes: list[int] | None = None) -> Tensor:
    """Return the noise-free sum of one physical batch or of several."""
    door = open_door(bound, rows.dtype)
    for part in [rows] if sizes is None else rows.split(sizes):
        door.admit(split(part), rule)  # type: ignore[arg-type]
    return flat(door.release())


@st.composite
def batches(draw: st.DrawFn, dtype: torch.dtype = torch.float64, least: int = 0) -> Tensor:
    size = draw(st.integers(least, 8))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    rows = torch.randn(size, WIDTH, generator=generator, dtype=dtype)
    scale = draw(st.sampled_from([0.0, 1e-12, 0.1, 1.0, 1e6, 1e15]))
    return rows * scale


@st.composite
def neighbours(draw: st.DrawFn, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Draw a batch, and the same batch with a sample that an adversary inserted at a random position."""
    rows = draw(batches(dtype))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    one = torch.randn(1, WIDTH, generator=generator, dtype=dtype)
    kind = draw(st.sampled_from(["random", "opposed", "aligned", "huge", "tiny", "zero", "nan", "inf"]))
    if kind in ("opposed", "aligned"):  # many equal samples, and the sample in the opposite or the same direction
        rows = one.expand(len(rows), -1) * 3
        one = -one if kind == "opposed" else one
    one = one * {"huge": 1e30, "tiny": 1e-30, "zero": 0.0}.get(kind, 1.0)
    if kind in ("nan", "inf"):
        one[0, draw(st.integers(0, WIDTH - 1))] = float(kind)
    where = draw(st.integers(0, len(rows)))
    return rows, torch.cat([rows[:where], one, rows[where:]])


@few
@given(pair=neighbours(), rule=rules, bound=bounds)
def test_one_sample_never_moves_the_sum_by_more_than_the_bound(pair, rule, bound):
    without, joined = pair
    moved = (summed(joined, rule, bound) - summed(without, rule, bound)).norm()
    assert moved <= bound * (1 + 1e-9)


@few
@given(pair=neighbours(torch.float32), rule=rules, bound=bounds)
def test_one_sample_never_moves_a_float32_sum_by_more_than_the_bound(pair, rule, bound):
    without, joined = pair
    moved = (summed(joined, rule, bound).double() - summed(without, rule, bound).double()).norm()
    assert moved <= bound * (1 + 1e-5)


@few
@given(rows=batches(), rule=rules, bound=bounds, data=st.data())
def test_the_order_of_samples_does_not_matter(rows, rule, bound, data):
    order = torch.tensor(data.draw(st.permutations(range(len(rows)))), dtype=torch.long)
    difference = (summed(rows[order], rule, bound) - summed(rows, rule, bound)).norm()
    assert difference <= 1e-12 * bound * max(1, len(rows))


@few
@given(rows=batches(), rule=rules, bound=bounds, data=st.data())
def test_any_split_into_physical_batches_gives_the_same_sum(rows, rule, bound, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    ends = [0, *cuts, len(rows)]
    sizes = [b - a for a, b in pairwise(ends)]  # some parts are empty
    difference = (summed(rows, rule, bound, sizes) - summed(rows, rule, bound)).norm()
    assert difference <= 1e-12 * bound * max(1, len(rows))


@pytest.mark.parametrize("parts", [0, 1, 2, 7])
def test_noise_is_drawn_exactly_once_however_many_batches_came(parts):
    noise = Recording()
    door = open_door(noise_multiplier=1.0, noise=noise)
    for _ in range(parts):
        door.admit(split(torch.zeros(2, WIDTH, dtype=torch.float64)), Flat())
    assert noise.events == []
    released = flat(door.release())
    assert sum(noise.events) == WIDTH
    assert torch.allclose(released, flat(open_door(noise_multiplier=1.0).release()), atol=1e-12)


def test_long_parameters_get_noise_in_every_place():
    noise, size = Recording(), 2**16 * 2 + 3
    door = Door({"w": torch.zeros(size)}, 1.0, 1.0, 1.0, noise)
    released = door.release()["w"]
    assert sum(noise.events) == size
    assert len(released.unique()) > 0.9 * size
    assert abs(released.std() - 1) < 0.01


@few
@given(rows=batches(least=1), rule=rules, bad=st.sampled_from([math.nan, math.inf, -math.inf]), data=st.data())
def test_a_non_finite_sample_equals_a_removed_one(rows, rule, bad, data):
    row = data.draw(st.integers(0, len(rows) - 1))
    broken = rows.clone()
    broken[row, data.draw(st.integers(0, WIDTH - 1))] = bad
    removed = torch.cat([rows[:row], rows[row + 1 :]])
    assert torch.allclose(summed(broken, rule, 1.0), summed(removed, rule, 1.0), rtol=1e-12, atol=1e-12)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 3))


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def through(model: nn.Module, inputs: Tensor, targets: Tensor, rule: object) -> Tensor:
    door = Door(dict(model.named_parameters()), 1.0, 0.0, 1.0, SeededNoise(0))
    door.admit(gradients(model, cross_entropy, inputs, targets), rule)  # type: ignore[arg-type]
    return flat(door.release()).detach()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("pixel", [math.nan, math.inf, -math.inf])
def test_a_sample_with_a_broken_pixel_equals_a_removed_one(rule, pixel):
    model, inputs, targets = network(), torch.randn(5, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1])
    inputs[2, 0, 1, 1] = pixel
    others = torch.tensor([0, 1, 3, 4])
    expected = through(model, inputs[others], targets[others], rule)
    assert torch.isfinite(expected).all()
    assert torch.allclose(through(model, inputs, targets, rule), expected, atol=1e-6)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("pixel", [1e10, 1e19, 1e30, 3e38])
def test_a_sample_with_a_huge_pixel_counts_no_more_than_the_bound(rule, pixel):
    model, inputs, targets = network(), torch.randn(5, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1])
    inputs[2, 0, 1, 1] = pixel
    others = torch.tensor([0, 1, 3, 4])
    moved = through(model, inputs, targets, rule) - through(model, inputs[others], targets[others], rule)
    assert moved.norm() <= 1 + 1e-5


def test_an_empty_batch_releases_pure_noise_and_is_charged():
    charges: list[int] = []
    door = open_door(2.0, noise_multiplier=3.0, expected_batch_size=10, charge=lambda: charges.append(1))
    door.admit(split(torch.zeros(0, WIDTH, dtype=torch.float64)), Flat())
    released = flat(door.release())
    assert charges == [1]
    assert torch.allclose(released, torch.cat(expected_noise(SeededNoise(0))) * 6 / 10, atol=1e-5)
    assert (released != 0).all()


def expected_noise(noise: SeededNoise) -> list[Tensor]:
    return [noise.normal(math.prod(shape)) for shape in SHAPES.values()]


def test_the_charge_comes_before_the_noise():
    events: list[object] = []
    open_door(noise_multiplier=1.0, noise=Recording(events), charge=lambda: events.append("charge")).release()
    assert events[0] == "charge"
    assert events.count("charge") == 1


def test_a_step_stays_charged_and_closed_if_noise_fails():
    events: list[object] = []
    door = open_door(
        noise_multiplier=1.0,
        noise=Recording(events, RuntimeError("no entropy")),
        charge=lambda: events.append("charge"),
    )
    with pytest.raises(RuntimeError, match="no entropy"):
        door.release()
    assert events[0] == "charge"
    with pytest.raises(RuntimeError, match="already released"):
        door.release()


def test_nothing_is_released_if_the_charge_is_refused():
    def refuse() -> None:
        raise PermissionError("budget spent")

    noise = Recording()
    door = open_door(noise_multiplier=1.0, noise=noise, charge=refuse)
    with pytest.raises(PermissionError):
        door.release()
    assert noise.events == []
    with pytest.raises(RuntimeError):
        door.release()


def test_a_second_release_and_a_late_batch_are_refused():
    door = open_door(noise_multiplier=1.0)
    door.release()
    with pytest.raises(RuntimeError, match="noise is drawn once"):
        door.release()
    with pytest.raises(RuntimeError, match="open a new Door"):
        door.admit(split(torch.zeros(1, WIDTH, dtype=torch.float64)), Flat())


@few
@given(rows=batches(), expected=st.sampled_from([0.5, 1, 7, 250]))
def test_the_sum_is_divided_by_the_expected_batch_size_never_by_how_many_came(rows, expected):
    door = open_door(expected_batch_size=expected)
    door.admit(split(rows), Flat())
    assert torch.allclose(flat(door.release()) * expected, summed(rows, Flat(), 1.0), rtol=1e-12, atol=1e-12)


class Rule(ClipRule):
    """A clip rule that ignores the clip bound."""

    name = "malicious"

    def __init__(self, weights: Callable[[Tensor], Tensor]) -> None:
        self._weights = weights

    def weights(self, norms: Tensor, bound: float) -> Tensor:
        return self._weights(norms)


def column(value: float) -> Callable[[Tensor], Tensor]:
    return lambda norms: torch.full((len(norms), 1), value)


def table(value: float) -> Callable[[Tensor], Tensor]:
    return lambda norms: torch.full_like(norms, value)


def one_block(norms: Tensor) -> Tensor:
    return torch.eye(norms.shape[1])[:1].expand(len(norms), -1) * 1e9


def shrinking(norms: Tensor) -> Tensor:
    weights = torch.full((len(norms), 1), 1e9)
    norms.zero_()
    return weights


MALICIOUS = {
    "huge": column(1e9),
    "huge by block": table(1e300),
    "negative": column(-1e9),
    "nan": column(math.nan),
    "infinite": column(math.inf),
    "minus infinite by block": table(-math.inf),
    "one block": one_block,
    "integers": lambda norms: torch.full((len(norms), 1), 10**9),
    "half precision": lambda norms: torch.full((len(norms), 1), 6e4, dtype=torch.float16),
    "one weight for all": lambda norms: torch.full((1, 1), 1e9),
    "writes over the norms": shrinking,
}
few_malicious = settings(max_examples=15, deadline=None, derandomize=True)


@pytest.mark.parametrize("name", MALICIOUS)
@few_malicious
@given(pair=neighbours(), bound=bounds)
def test_a_malicious_rule_cannot_exceed_the_bound(name, pair, bound):
    without, joined = pair
    rule = Rule(MALICIOUS[name])
    moved = (summed(joined, rule, bound) - summed(without, rule, bound)).norm()
    assert moved <= bound * (1 + 1e-9)


@pytest.mark.parametrize(
    "weights",
    [lambda n: torch.ones(len(n)), lambda n: torch.ones(len(n) + 1, 1), lambda n: torch.ones(len(n), 7)],
)
def test_weights_of_another_shape_are_refused(weights):
    with pytest.raises((ValueError, IndexError, RuntimeError)):
        summed(torch.ones(2, WIDTH, dtype=torch.float64), Rule(weights), 1.0)


@few
@given(
    norms=st.lists(st.sampled_from([0.0, 1e-310, 1e-8, 1.0, 1e8, 1e154, 1e300, math.inf, math.nan]), min_size=1),
    weight=st.sampled_from([0.0, 1e-310, 1e-9, 1.0, 1e9, 1e300, -1.0, -1e300, math.inf, math.nan]),
    bound=bounds,
)
def test_bounded_weights_keep_the_bound_for_any_norms_and_weights(norms, weight, bound):
    column = torch.tensor(norms, dtype=torch.float64)[:, None]
    weights = bounded(torch.full_like(column, weight), column, bound)
    finite = torch.isfinite(column)
    assert (weights[~finite] == 0).all()
    assert torch.isfinite(weights).all()
    assert ((weights * column)[finite].abs() <= bound * (1 + 1e-9)).all()


@few
@given(
    deviation=st.sampled_from([1e-3, 0.3, 1.0, 10.0]),
    value=st.sampled_from([0.0, 1 / 3, -0.7]),
    batch=st.sampled_from([1.0, 8.0]),
)
def test_released_sums_lie_on_a_grid_that_the_data_do_not_choose(deviation, value, batch):
    door = Door({"w": torch.zeros(64, dtype=torch.float64)}, 1.0, deviation, batch, SecureNoise())
    door.admit(Updates({"w": Dense(torch.full((1, 64), value / 8, dtype=torch.float64))}, torch.zeros(1)), Flat())
    grid = 2.0 ** (math.floor(math.log2(deviation)) - GRID_BITS)
    steps = door.release()["w"] * batch / grid
    assert torch.equal(steps, steps.round())
    assert deviation * 2**-GRID_BITS / 2 <= grid <= deviation * 2**-GRID_BITS


def test_released_noise_has_the_declared_deviation():
    door = Door({"w": torch.zeros(200_000)}, 0.5, 3.0, 10.0, SecureNoise())
    released = door.release()["w"].double()
    assert abs(released.std() / (3.0 * 0.5 / 10) - 1) < 5e-6**0.5 * 5
    assert abs(released.mean()) < 6 * 0.15 / 200_000**0.5


@pytest.mark.parametrize("setting", ["max_grad_norm", "noise_multiplier", "expected_batch_size"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, "1", None, True])
def test_settings_that_cannot_be_used_are_refused(setting, value):
    settings = {"max_grad_norm": 1.0, "noise_multiplier": 1.0, "expected_batch_size": 1.0} | {setting: value}
    with pytest.raises(SettingError, match=setting):
        Door({"w": torch.zeros(1)}, noise=SeededNoise(0), **settings)


@pytest.mark.parametrize("setting", ["max_grad_norm", "expected_batch_size"])
def test_a_zero_bound_or_batch_is_refused(setting):
    settings = {"max_grad_norm": 1.0, "noise_multiplier": 1.0, "expected_batch_size": 1.0} | {setting: 0.0}
    with pytest.raises(SettingError):
        Door({"w": torch.zeros(1)}, noise=SeededNoise(0), **settings)


def test_noise_too_small_for_a_number_is_refused_or_added_never_dropped():
    noise = Recording()
    try:
        Door({"w": torch.zeros(3)}, 1e-200, 1e-200, 1.0, noise).release()
    except ValueError:
        return
    assert noise.events == [3]


def crafted(inputs: Tensor, targets: Tensor, model: nn.Module, rule: object, bound: float) -> float:
    """Return how far a record that an adversary chose moves the sum, in units of the clip bound."""
    loss = lambda outputs, targets: (outputs - targets).square().flatten(1).sum(1)
    door = Door(dict(model.named_parameters()), bound, 0.0, 1.0, SeededNoise(0))
    door.admit(gradients(model, loss, inputs, targets), rule)  # type: ignore[arg-type]
    return float(flat(door.release()).double().norm()) / bound


@pytest.mark.parametrize("rule", [Flat(), Automatic()], ids=lambda rule: rule.name)
def test_a_record_whose_tokens_cancel_cannot_exceed_the_bound(rule):
    # two equal tokens with opposite errors: the exact norm is zero, but a float32 sum of the two is not
    torch.manual_seed(0)
    model, token = nn.Linear(60, 60, bias=False), torch.randn(60) * 1e4
    inputs, errors = token.expand(1, 2, 60).contiguous(), torch.rand(60) * 1e12 + 1e12
    assert crafted(inputs, torch.stack([errors, -errors])[None], model, rule, 1.0) <= 1.001


@pytest.mark.parametrize("rule", [Flat(), Automatic()], ids=lambda rule: rule.name)
def test_a_record_of_tiny_tokens_and_huge_errors_cannot_exceed_the_bound(rule):
    # squares of the tokens underflow in float32, but their products with the errors do not
    torch.manual_seed(0)
    model = nn.Linear(200, 200, bias=False)
    inputs, targets = torch.full((1, 20, 200), 2e-23), torch.full((1, 20, 200), 6e17)
    assert crafted(inputs, targets, model, rule, 0.01) <= 1.001


@pytest.mark.parametrize("pixel", [1e20, 4.5e22])
def test_a_record_whose_weight_is_denormal_in_float32_cannot_exceed_the_bound(pixel):
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False)
    assert crafted(torch.full((1, 3), pixel), torch.zeros(1, 1), model, Flat(), 1.0) <= 1.001


@pytest.mark.parametrize(
    ("model", "inputs", "outputs"),
    [
        (nn.Linear(256, 256, bias=False), (1, 256), (1, 256)),
        (nn.Linear(256, 256, bias=False), (1, 8, 256), (1, 8, 256)),
        (nn.Conv2d(64, 64, 3, bias=False), (1, 64, 6, 6), (1, 64, 4, 4)),
    ],
    ids=["linear", "tokens", "convolution"],
)
def test_a_record_of_huge_inputs_and_denormal_errors_cannot_exceed_the_bound(model, inputs, outputs):
    # half of the smallest denormal number is rounded up to that number
    smallest = 1.401298464324817e-45
    found = gradients(
        model, lambda out, target: (out * target).flatten(1).sum(1), torch.full(inputs, 3e38),
        torch.full(outputs, smallest),
    )  # fmt: skip
    bound = 0.51 * float(found.norms())
    door = Door(dict(model.named_parameters()), bound, 0.0, 1.0, SeededNoise(0))
    door.admit(found, Flat())
    assert float(flat(door.release()).double().norm()) <= 1.001 * bound


def test_the_norm_of_a_factored_update_is_right_also_where_float64_terms_cancel():
    generator = torch.Generator().manual_seed(1)
    token, step, error = torch.randn(3, 60, generator=generator, dtype=torch.float64)
    token = token * 1e9
    leaf = Factored(
        torch.stack([token, token + step])[None, None],
        torch.stack([-error, error])[None, None],
        torch.Size([60, 60]),
    )
    assert leaf.square_norms().sqrt().item() == pytest.approx(leaf.dense().norm().item(), rel=1e-3)


def test_bfloat16_sums_keep_the_bound():
    generator = torch.Generator().manual_seed(0)
    bulk, one = (
        torch.randn(1, WIDTH, generator=generator).expand(256, -1),
        torch.randn(1, WIDTH, generator=generator),
    )
    bulk, one = bulk.bfloat16(), one.bfloat16()
    for sizes in (None, 1):
        pair = [summed(rows, Flat(), 1.0, sizes).double() for rows in (torch.cat([one, bulk]), bulk)]  # type: ignore[arg-type]
        assert (pair[0] - pair[1]).norm() <= 1.01
