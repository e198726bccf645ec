"""The ziggurat gives the normal law exactly: in each layer, at their borders, in the wedges and far in the tail.

The words come from a fixed seed, so that these tests have one outcome each.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from gnomon.randomness import ziggurat
from gnomon.randomness.ziggurat import R, Scratch, Tables, fill, spare_words, tables
from tests.randomness.generators import FixedStream

pytest.importorskip("numba")

ALPHA = 1e-5
ONES = np.uint64(2**64 - 1)
SIGN = np.uint64(2**8)
MANY = 2**21


@pytest.fixture(scope="module")
def kernel():
    assert ziggurat.KERNEL.after(0) or ziggurat.KERNEL.compile(), ziggurat.KERNEL.failure
    return ziggurat.KERNEL.after(0)


def drawn(kernel, count: int = MANY, seed: int = 1) -> np.ndarray:
    values = np.empty(count)
    fill(values, FixedStream(seed), kernel, Scratch())
    return values


def converted(kernel, words: np.ndarray, spare, layers: Tables | None = None) -> np.ndarray:
    """Return the normals of these words, with spare words from a function of their number."""
    values, waiting, left = np.full(len(words), np.nan), np.empty(len(words), np.int64), -1
    for _ in range(10_000):
        left = kernel(words, values, waiting, left, spare(2 * spare_words(len(words))), *(layers or tables())[1:])
        if not left:
            return values
    raise AssertionError("values still wait")


def with_tables(kernel, layers: Tables, count: int = MANY) -> np.ndarray:
    source = np.random.Philox(3)
    parts = [converted(kernel, source.random_raw(2**14), source.random_raw, layers) for _ in range(count // 2**14)]
    return np.concatenate(parts)


def chi_square(values: np.ndarray, borders: np.ndarray, cdf=stats.norm.cdf) -> float:
    """Return the p-value of the counts between the borders, and outside of them."""
    counts = np.bincount(np.searchsorted(borders, values), minlength=len(borders) + 1)
    chances = np.diff(cdf(np.concatenate([[-np.inf], borders, [np.inf]])))
    return float(stats.chisquare(counts, chances / chances.sum() * len(values)).pvalue)


def layer_borders() -> np.ndarray:
    edges = tables().edges[1:-1]
    tail = np.array([4.2, 3.95, 3.8])
    return np.concatenate([-tail, -edges, [0.0], edges[::-1], tail[::-1]])


# -- the tables ------------------------------------------------------------------------------------------


def test_all_layers_have_the_same_area():
    x, y = tables().edges, tables().heights
    base = R * y[1] + math.sqrt(math.pi / 2) * math.erfc(R / math.sqrt(2))
    areas = x[1:256] * (y[2:] - y[1:256])
    assert np.abs(areas / base - 1).max() < 1e-11
    assert 256 * base == pytest.approx(math.sqrt(math.pi / 2), rel=0.008)  # the layers cover little more than the curve
    assert (np.diff(x) < 0).all()
    assert x[0] * y[1] == pytest.approx(base, rel=1e-14)


# -- the whole law ---------------------------------------------------------------------------------------


def test_every_layer_is_as_full_as_it_should_be(kernel):
    assert chi_square(drawn(kernel), layer_borders()) > ALPHA


@pytest.mark.parametrize("error", ["no wedges", "widths of the next layer", "no tail", "limits too wide"])
def test_an_error_in_the_layers_shows(kernel, error):
    edges, widths, limits, heights = (table.copy() for table in tables())
    if error == "no wedges":
        limits[1:] = 2**53
    elif error == "widths of the next layer":
        widths[:-1] = widths[1:]
    elif error == "no tail":
        limits[0] = 2**53
    else:
        limits[1:-1] = np.minimum(limits[1:-1] + 2**49, 2**53)
    assert chi_square(with_tables(kernel, tables()), layer_borders()) > ALPHA
    assert chi_square(with_tables(kernel, Tables(edges, widths, limits, heights)), layer_borders()) < ALPHA


def test_moments_up_to_the_eighth(kernel):
    values = drawn(kernel)
    for order in range(1, 9):
        expected = 0.0 if order % 2 else math.prod(range(1, order, 2))
        spread = math.sqrt((math.prod(range(1, 2 * order, 2)) - expected**2) / MANY)
        assert abs((values**order).mean() - expected) < 4.5 * spread, order
        if order % 2 == 0:  # control: a deviation that is 0.5 % low
            assert abs(((0.995 * values) ** order).mean() - expected) > 4.5 * spread or order > 6


def test_neighbours_and_their_squares_are_uncorrelated(kernel):
    values = drawn(kernel)
    for of in (lambda z: z, lambda z: (z * z - 1) / math.sqrt(2), np.sign):
        series = of(values)
        for lag in (1, 2, 3, 16, 2**14):
            assert abs((series[lag:] * series[:-lag]).mean()) < 5 / math.sqrt(MANY - lag)
    half = values.copy()
    half[1::2] = 0.1 * half[::2] + math.sqrt(0.99) * half[1::2]  # control
    assert abs((half[1:] * half[:-1]).mean()) > 5 / math.sqrt(MANY)


def test_signs_layers_and_positions_use_bits_of_their_own():
    # one word in each layer, each sign, the same position: the results depend on each of the three alone
    position = np.uint64(2**52) << np.uint64(11)
    layers = np.arange(1, 200, dtype=np.uint64)
    values, waiting = np.empty(199), np.empty(199, np.int64)
    for sign in (0, 1):
        words = position | layers | (SIGN if sign else np.uint64(0))
        assert ziggurat.ziggurat(words, values, waiting, -1, np.empty(0, np.uint64), *tables()[1:]) == 0
        assert np.array_equal(values, (1 - 2 * sign) * tables().edges[1:200] / 2)


def test_the_law_of_one_hundred_million_normals(kernel):
    stream, scratch = FixedStream(11), Scratch()
    values, borders = np.empty(2**22), layer_borders()
    fine = np.linspace(R - 0.05, R + 0.05, 21)
    fine = np.concatenate([-fine[::-1], fine])
    counts, near = np.zeros(len(borders) + 1), np.zeros(len(fine) + 1)
    for _ in range(24):
        fill(values, stream, kernel, scratch)
        counts += np.bincount(np.searchsorted(borders, values), minlength=len(borders) + 1)
        near += np.bincount(np.searchsorted(fine, values), minlength=len(fine) + 1)
    for found, where in ((counts, borders), (near, fine)):
        chances = np.diff(stats.norm.cdf(np.concatenate([[-np.inf], where, [np.inf]])))
        assert stats.chisquare(found, chances / chances.sum() * found.sum()).pvalue > ALPHA


# -- the base layer, the tail and the wedges ---------------------------------------------------------------


def test_the_base_joins_its_tail_without_a_step(kernel):
    # words of the base layer alone, so that a quarter of them lies near R
    source = np.random.Philox(5)
    values = np.abs(converted(kernel, source.random_raw(2**20) & ~np.uint64(255), source.random_raw))
    inside = R / tables().edges[0]

    def cdf(x):
        x = np.clip(x, 0, None)
        beyond = 1 - stats.norm.sf(np.maximum(x, R)) / stats.norm.sf(R)
        return inside * np.minimum(x, R) / R + (1 - inside) * beyond

    borders = np.concatenate([np.linspace(0.5, R - 0.1, 20), np.linspace(R - 0.1, R + 0.1, 201)[1:], [4.0, 4.5]])
    assert chi_square(values, borders, cdf) > ALPHA
    shifted = np.where(values > R, values + 0.002, values)  # control: a gap of two thousandths
    assert chi_square(shifted, borders, cdf) < ALPHA


@pytest.mark.parametrize("layer", [1, 2, 17, 128, 200, 254, 255])
def test_the_wedge_of_a_layer_has_the_shape_of_the_curve(kernel, layer):
    # positions beyond the limit: accepted under the curve, replaced by a whole new normal above it
    x, y, limit = tables().edges, tables().heights, int(tables().limits[layer])
    generator, count = np.random.Generator(np.random.Philox(layer)), 200_000
    words = generator.integers(limit, 2**53, count).astype(np.uint64) << np.uint64(11)
    words |= np.uint64(layer) | generator.integers(0, 2, count).astype(np.uint64) << np.uint64(8)
    values = np.abs(converted(kernel, words, np.random.Philox(layer + 1000).random_raw))
    low, high = x[layer + 1], x[layer]
    under = lambda t: math.sqrt(2 * math.pi) * (stats.norm.cdf(t) - stats.norm.cdf(low)) - y[layer] * (t - low)
    accepted = under(high) / ((high - low) * (y[layer + 1] - y[layer]))

    def cdf(t):
        part = under(np.clip(t, low, high)) / under(high)
        return accepted * part + (1 - accepted) * (2 * stats.norm.cdf(t) - 1)

    assert stats.kstest(values, cdf).pvalue > ALPHA
    # control: if every position were accepted, the wedge would be a rectangle
    uniform = generator.uniform(low, high, count)
    assert stats.kstest(np.where((values > low) & (values < high), uniform, values), cdf).pvalue < ALPHA


def tail_words(end: float, count: int, accept: bool = True):
    """Return spare words that the tail sampler would draw if it ends beyond `end`, and where they begin exactly.

    The first of two words decides how far out a value lies and the second whether it stays there. Words shifted to the
    right are an exact sample of the small ones: those that lead beyond `end`, and those that can be accepted there.
    """
    far = math.floor((end - R) * R / math.log(2))
    start = far * math.log(2) / R
    needed = math.floor(start**2 / 2 / math.log(2))
    source = np.random.Philox(int(1000 * end))

    def spare(count: int) -> np.ndarray:
        words = source.random_raw(count // 2 * 2)
        words[::2] >>= np.uint64(far)
        words[1::2] >>= np.uint64(needed if accept else 63)
        return words

    return spare, R + start


@pytest.mark.parametrize("end", [R, 4.5, 5.77, 6.5, 7.3, 8.0, 9.0])
def test_the_tail_has_the_right_law_beyond_eight_deviations(kernel, end):
    count = 100_000
    words = np.full(count, ONES & ~np.uint64(255))
    words[::2] &= ~SIGN
    spare, start = tail_words(end, count)
    values = converted(kernel, words.copy(), spare)
    assert (values[::2] > start - 1e-12).all()
    assert (values[1::2] < -start + 1e-12).all()
    assert stats.kstest(stats.norm.sf(np.abs(values)) / stats.norm.sf(start), "uniform").pvalue > ALPHA
    # control: an exponential tail, accepted everywhere
    spare, start = tail_words(end, count, accept=False)
    values = converted(kernel, words, spare)
    assert stats.kstest(stats.norm.sf(np.abs(values)) / stats.norm.sf(start), "uniform").pvalue < ALPHA


def test_the_tail_is_entered_as_often_as_the_law_says():
    # the chance of the base layer and of a position beyond R, among the attempts that are not rejected
    area = tables().edges[0] * tables().heights[1]
    attempts = 256 * area / math.sqrt(math.pi / 2)
    chance = attempts * (2**53 - int(tables().limits[0])) / 2**53 / 256
    assert chance == pytest.approx(2 * stats.norm.sf(R), rel=1e-9)


# -- words -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", ["compiled", "python"])
def test_extreme_words_give_finite_values(kernel, run):
    run = kernel if run == "compiled" else ziggurat.ziggurat
    for word in (0, 2**64 - 1, 2**63, 2**64 - 256, 255, 2**11 - 1):
        for spare in (0, 2**64 - 1):
            words, values = np.full(9, word, np.uint64), np.zeros(9)
            waiting = np.empty(9, np.int64)
            left = run(words, values, waiting, -1, np.full(40, spare, np.uint64), *tables()[1:])
            assert 0 <= left <= 9
            assert np.isfinite(values).all()
            assert np.abs(values).max() < 14
    # the smallest uniforms lie beyond the reach of Box-Muller's 8.6
    values, tail = np.zeros(1), np.array([2**64 - 256], np.uint64)
    assert run(tail, values, np.empty(1, np.int64), -1, np.array([2**28, 0], np.uint64), *tables()[1:]) == 0
    assert abs(values[0]) > 8.6


def test_values_that_wait_for_spare_words_keep_the_law(kernel):
    # two spare words at a time: every value that is not decided at once has to wait
    source = np.random.Philox(21)
    parts, unfair = [], []
    for _ in range(64):
        words = source.random_raw(2**14)
        parts.append(converted(kernel, words.copy(), lambda _: source.random_raw(2)))
        # control: values that wait are drawn afresh, as if their words had decided nothing
        values, waiting = np.empty(2**14), np.empty(2**14, np.int64)
        while left := kernel(words, values, waiting, -1, source.random_raw(0), *tables()[1:]):
            words[waiting[:left]] = source.random_raw(left)
        unfair.append(values)
    assert chi_square(np.concatenate(parts), layer_borders()) > ALPHA
    assert chi_square(np.concatenate(unfair), layer_borders()) < ALPHA


def test_each_word_is_used_once(kernel):
    """Change one word at a time: each spare word that is read decides one value only."""
    source = np.random.Philox(31)
    words = source.random_raw(400) | np.uint64(0xFFF << 52)  # all near the end of their layer
    spare = source.random_raw(4000)
    run = lambda spare: converted(kernel, words.copy(), lambda _: spare)
    honest = run(spare)
    for place in range(0, 600, 7):
        other = spare.copy()
        other[place] ^= np.uint64(2**30)  # a low bit of a uniform, which changes no decision
        changed = int((run(other) != honest).sum())
        assert changed <= 1, place


def test_the_compiled_form_agrees_with_the_python_function(kernel):
    assert ziggurat._agrees(kernel)

    def wrong(*arguments):
        left = kernel(*arguments)
        arguments[1][5] *= 1 + 1e-12
        return left

    assert not ziggurat._agrees(wrong)
