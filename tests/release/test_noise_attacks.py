"""Attacks on the noise: they succeed on flawed sources, which serve as controls, and stay at chance on the door."""

from __future__ import annotations

import copy
import math
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import gnomon
from gnomon.accounting import FullBatch
from gnomon.audit.bounds import largest_cosine, singular_values
from gnomon.clipping import Flat
from gnomon.randomness.normals import box_muller
from gnomon.randomness.ziggurat import KERNEL, tables, ziggurat
from gnomon.release import Door, SecureNoise, SeededNoise
from gnomon.updates import Dense, Updates
from tests.audit import mutants
from tests.helpers import draws_after_fork
from tests.randomness.generators import GENERATORS, secure_source

ALPHA = 1e-6
"""The significance level: the probability that a statistical test fails by chance."""

SIZE, TRIALS = 20_000, 200
SOAK = pytest.mark.skipif(not os.environ.get("GNOMON_SOAK"), reason="a long form: set GNOMON_SOAK=1")


class Float32Noise:
    """The normals of torch.randn: Box-Muller on 24-bit uniforms."""

    private = True

    def normal(self, count: int) -> Tensor:
        return torch.randn(count).double()

    def uniform(self, count: int) -> Tensor:
        return torch.rand(count).double()


# -- membership from a single release ----------------------------------------------------------------


def blocks_of_16(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pairs of normals that torch computes from the same radius and angle."""
    rows = z[: len(z) // 16 * 16].reshape(-1, 16)
    return rows[:, :8].flatten(), rows[:, 8:].flatten()


def halves(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pairs of normals that `box_muller` computes from the same radius and angle."""
    return z[: len(z) // 2], z[len(z) // 2 : len(z) // 2 * 2]


def off_lattice(z: Tensor, pairs, bits: int) -> float:
    """Return the mean distance of `2^bits exp(-|pair|^2 / 2)` from whole numbers, which is 0.25 by chance.

    The exponential is the uniform from which a radius was computed. Only small values are
    informative: rounding of z blurs the others.
    """
    first, second = pairs(z)
    uniforms = torch.exp(-(first.square() + second.square()) / 2)
    small = uniforms[uniforms < max(2.0**14 * 2.0**-bits, uniforms.kthvalue(20).values)]
    scaled = small * 2.0**bits
    return float((scaled - scaled.round()).abs().mean())


def guesses(noise, pairs, bits: int, trials: int = TRIALS, score=off_lattice) -> int:
    """Return how often an observer who knows all other records guesses from one release whether a record took part."""
    torch.manual_seed(0)
    right = 0
    others, record = torch.randn(SIZE) / SIZE**0.5, torch.randn(SIZE)
    for present in np.random.default_rng(0).integers(0, 2, trials):
        rows = torch.stack([others, record]) if present else others[None]
        door = Door({"w": torch.zeros(SIZE)}, 1.0, 1.0, 1.0, noise)
        weights = door.admit(Updates({"w": Dense(rows)}, torch.zeros(len(rows))), Flat()).weights
        released = door.release()["w"].double()
        out = released - others.double() * weights[0]
        scores = [score(z, pairs, bits) for z in (out, out - record.double() / record.double().norm())]
        right += (scores[1] < scores[0]) == bool(present)
    return right


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("pairs", [blocks_of_16, halves])
@pytest.mark.parametrize("bits", [24, 32, 53, 54])
def test_the_lattice_attack_stays_at_chance_on_our_release(pairs, bits, generator, monkeypatch):
    trials = TRIALS if (pairs, bits) == (blocks_of_16, 24) else 60
    right = guesses(secure_source(generator, monkeypatch)(), pairs, bits, trials)
    assert stats.binomtest(right, trials).pvalue > ALPHA


def test_the_lattice_attack_wins_on_float32_normals():
    # control: the same door, including its rounding to a grid, with torch's float32 normals
    assert guesses(Float32Noise(), blocks_of_16, 24, 60) == 60


def test_the_lattice_attack_knows_how_our_radii_are_made():
    # control: before any rounding, the 54-bit lattice of `box_muller` itself is visible
    words = torch.from_numpy(np.random.default_rng(1).integers(-(2**63), 2**63, 2000))
    words[:1000] >>= 36  # small uniforms, where float64 resolves the lattice
    z = box_muller(words)
    first, second = halves(z)
    lattice = torch.exp(-(first.square() + second.square()) / 2) * 2.0**53 - 0.5
    assert (lattice - lattice.round()).abs().max() < 0.01


def base_layer(z: Tensor, pairs, bits: int) -> float:
    """Return the mean distance of a ziggurat's positions from whole numbers, which is 0.25 by chance.

    Values just below R come from the base layer, where `bits` bits choose a multiple of a known width.
    """
    edges = tables().edges
    near = z.abs()[(z.abs() > edges[2]) & (z.abs() < edges[1])]
    scaled = near / edges[0] * 2.0**bits
    return float((scaled - scaled.round()).abs().mean())


class CoarseZiggurat:
    """A ziggurat whose positions have 18 bits."""

    private = True

    def normal(self, count: int) -> Tensor:
        values, words = torch.empty(count, dtype=torch.float64), np.random.default_rng().integers
        fill = lambda size: words(0, 2**64, size, np.uint64) & ~np.uint64((1 << 46) - (1 << 9))
        waiting, left, own = np.empty(count, np.int64), -1, fill(count)
        while left := KERNEL.after(0)(own, values.numpy(), waiting, left, fill(1000), *tables()[1:]):
            pass
        return values


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("bits", [18, 24, 32, 53])
def test_the_layers_of_a_ziggurat_do_not_show_in_our_release(bits, generator, monkeypatch):
    right = guesses(secure_source(generator, monkeypatch)(), None, bits, 60, score=base_layer)
    assert stats.binomtest(right, 60).pvalue > ALPHA


def test_the_layers_of_a_coarse_ziggurat_show(monkeypatch):
    # control: the same door with 18-bit positions
    secure_source("ziggurat", monkeypatch)  # compiles
    assert guesses(CoarseZiggurat(), None, 18, 60, score=base_layer) >= 55


def test_the_layer_attack_knows_how_our_positions_are_made():
    # control: before any rounding, small positions of the ziggurat are visible as whole multiples of a width
    words, values = np.random.default_rng(3).integers(0, 2**20, 1000).astype(np.uint64) << np.uint64(11), np.empty(1000)
    assert ziggurat(words, values, np.empty(1000, np.int64), -1, words[:0], *tables()[1:]) == 0
    scaled = values / tables().edges[0] * 2.0**53
    assert np.abs(scaled - scaled.round()).max() < 1e-6


# -- tails ---------------------------------------------------------------------------------------------

FAR = 5.77
"""Float32 normals end at sqrt(2 ln 2^24) = 5.768."""


def test_tails_beyond_the_end_of_float32_have_the_right_rate():
    # The radius word decides how far out a pair can lie. Words whose upper 24 bits are equal are those below 2^-23
    # of the range, and fresh words shifted by 23 are an exact sample of them: 2^23 times as many tails as usual.
    pairs, shift = 400_000, 23
    words = torch.from_numpy(np.random.default_rng(2).integers(-(2**63), 2**63, 2 * pairs))
    words[:pairs] >>= shift
    z = box_muller(words)
    expected = 2 * stats.norm.sf(FAR) * 2.0**shift
    assert stats.binomtest(int((z.abs() > FAR).sum()), 2 * pairs, expected).pvalue > ALPHA
    beyond = z[z.abs() > FAR].abs().numpy()
    assert len(beyond) > 10_000
    law = stats.norm.sf(beyond) / stats.norm.sf(FAR)
    assert stats.kstest(law, "uniform").pvalue > ALPHA
    assert math.sqrt(2 * 24 * math.log(2)) < FAR < beyond.max()


TAILS = (2.5, 3.0, 3.5, 4.5, 5.0, 5.5)
"""The thresholds beyond which released noise is counted, in standard deviations."""

FIVE, FURTHER = 5 * 2**23, 2**29
"""Numbers of draws of which 24 are expected beyond 5 standard deviations, and 20 beyond 5.5."""


def tail_probabilities(noise, draws: int) -> dict[float, float]:
    """Return the p-value of the number of draws in each tail, for draws that a door releases."""
    deviation, width = 1.4147, min(draws, 2**20)
    # one grid step further out, so that noise cut exactly at the threshold and rounded to the grid is not counted
    ends = {tail: tail + 2.0**-19 for tail in TAILS}
    counts = dict.fromkeys(TAILS, 0)
    for _ in range(draws // width):
        door = Door({"w": torch.zeros(width)}, 0.5, 2 * deviation, 1.0, noise)
        size = door.release()["w"].abs_()
        far = size[size > TAILS[0] * deviation].double() / deviation
        for tail, end in ends.items():
            counts[tail] += int((far > end).sum())
    return {
        tail: float(stats.binomtest(count, draws // width * width, 2 * stats.norm.sf(ends[tail])).pvalue)
        for tail, count in counts.items()
    }


@pytest.mark.parametrize("generator", GENERATORS)
def test_released_noise_has_its_tails_up_to_five_deviations(generator, monkeypatch):
    found = tail_probabilities(secure_source(generator, monkeypatch)(), FIVE)
    assert min(found.values()) > ALPHA / len(TAILS), found


@pytest.mark.parametrize(("end", "draws"), [(3.0, 2**17), (3.5, 2**18), (4.5, 2**22), (5.0, FIVE)])
def test_noise_that_is_cut_off_shows_in_released_tails(end, draws):
    # control: the same door with a source whose tails are cut off
    found = tail_probabilities(mutants.cut_at(end)(), draws)
    assert found[end] < ALPHA / len(TAILS), found


@SOAK
@pytest.mark.slow
@pytest.mark.parametrize("end", [math.inf, 5.5])
def test_released_noise_has_its_tails_up_to_five_and_a_half_deviations(end):
    found = tail_probabilities(mutants.cut_at(end)(), FURTHER)
    assert (min(found.values()) > ALPHA / len(TAILS)) == math.isinf(end), found


@SOAK
@pytest.mark.slow
def test_tails_of_two_thousand_million_normals():
    noise, draws, chunk = SecureNoise(), 2 * 10**9, 2**20
    far = sum(int((noise.normal(chunk).abs() > FAR).sum()) for _ in range(draws // chunk))
    mean = 2 * stats.norm.sf(FAR) * (draws // chunk) * chunk
    assert stats.poisson.cdf(far, mean) > ALPHA
    assert stats.poisson.sf(far - 1, mean) > ALPHA


# -- repeats -------------------------------------------------------------------------------------------


def releases(steps: int, noise=None) -> Tensor:
    """Return the noise of a Trainer's steps, (steps, parameters), read from the changes of the weights."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)).double()
    for p in model.parameters():
        nn.init.zeros_(p)  # zero weights and inputs: only the last bias has a gradient
    trainer = gnomon.Trainer(
        model, lambda out, target: 0 * out.sum(1), torch.optim.SGD(model.parameters(), lr=1.0), sampler=FullBatch(),
        expected_batch_size=1, noise_multiplier=1.0, target_delta=1e-5, steps=steps, noise=noise, progress=False,
    )  # fmt: skip
    data = torch.zeros(2, 8, dtype=torch.float64), torch.zeros(2)
    rows = []
    for inputs, targets in trainer.batches(data):
        trainer.step(inputs, targets)
        rows.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    table = torch.stack(rows)
    return table.diff(dim=0, prepend=torch.zeros(1, table.shape[1], dtype=torch.float64))


def collisions(values: Tensor) -> int:
    """Count the values that repeat an earlier one, on the grid of 2^-20 on which released sums lie."""
    return values.numel() - len((values.flatten() * 2**20).round().unique())


def test_no_noise_repeats_across_steps_and_parameters():
    table = releases(300)
    count = table.numel()
    # independent normals on the grid coincide by chance: n^2 / 2 pairs, each with probability grid / (2 sqrt(pi))
    chance = count**2 / 2 * 2.0**-20 / (2 * math.sqrt(math.pi))
    assert stats.poisson.sf(collisions(table) - 1, chance) > ALPHA
    # control: the same draw in every step
    repeated = table[:1].expand(300, -1)
    assert stats.poisson.sf(collisions(repeated) - 1, chance) < ALPHA


def test_the_steps_noise_has_every_singular_value_where_it_belongs():
    table = releases(500)
    found = singular_values(table, ALPHA)
    assert found.ok, found
    # controls: half the noise, one direction without noise, the same draw in every fourth step
    silent, reused = table.clone(), table.clone()
    silent[:, 5] = 0
    reused[::4] = reused[0]
    assert not singular_values(table / 2, ALPHA).ok
    assert not singular_values(silent, ALPHA).ok
    assert not singular_values(reused, ALPHA).ok


def test_no_two_steps_and_no_two_coordinates_share_a_draw():
    table = releases(300)
    assert largest_cosine(table, ALPHA).ok
    assert largest_cosine(table.T, ALPHA).ok
    # controls: one draw used for two steps, one for two coordinates
    steps, places = table.clone(), table.clone()
    steps[250], places[:, 7] = steps[3], places[:, 90]
    assert not largest_cosine(steps, ALPHA).ok
    assert not largest_cosine(places.T, ALPHA).ok


def test_released_noise_follows_the_normal_law():
    for noise in (None, SeededNoise(0)):
        values = releases(300, noise).flatten().numpy()
        assert stats.kstest(values, "norm").pvalue > ALPHA
    assert stats.kstest(0.95 * values, "norm").pvalue < ALPHA  # control


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_draws_other_noise_even_under_the_same_process_number(monkeypatch):
    # a process number can repeat: in a new process namespace, or when the system reuses it
    monkeypatch.setattr(os, "getpid", lambda: 1)
    noise = SecureNoise()
    noise.normal(3)
    theirs, ours = draws_after_fork(noise)
    assert len(theirs) == 16
    assert not (theirs == ours).any()


def test_the_state_of_the_noise_cannot_be_stored():
    noise = SecureNoise()
    noise.normal(2)
    stored = pickle.dumps(noise)
    assert stored == pickle.dumps(SecureNoise())  # nothing but the class
    drawn = [source.normal(64) for source in (noise, copy.copy(noise), copy.deepcopy(noise), pickle.loads(stored))]
    assert len(torch.cat(drawn).unique()) == 4 * 64


def test_fresh_processes_draw_other_noise():
    code = "from gnomon.release import SecureNoise; print(*SecureNoise().normal(50).tolist())"
    running = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    drawn = [process.communicate()[0].split() for process in running]
    assert [len(one) for one in drawn] == [50, 50]
    assert len({*drawn[0], *drawn[1]}) == 100
