"""The noise is normal, never repeats, and is never shared between processes."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
import torch
from scipy import stats

from gnomon.randomness import keystream
from gnomon.randomness.keystream import Keystream
from gnomon.randomness.normals import box_muller
from gnomon.release import SecureNoise, SeededNoise
from tests.helpers import draws_after_fork
from tests.randomness.generators import GENERATORS, secure_source

ALPHA = 1e-6
"""How often a test of randomness may fail by chance."""

SOURCES = [*GENERATORS, "seeded"]


@pytest.fixture
def source(request, monkeypatch):
    """A function that creates sources of one kind."""
    return (lambda: SeededNoise(3)) if request.param == "seeded" else secure_source(request.param, monkeypatch)


every_source = pytest.mark.parametrize("source", SOURCES, indirect=True)


@every_source
def test_noise_is_standard_normal(source):
    drawn = source().normal(200_001)
    assert drawn.dtype is torch.float64
    assert drawn.shape == (200_001,)
    assert stats.kstest(drawn.numpy(), "norm").pvalue > ALPHA
    assert stats.kstest(drawn.square().numpy(), "chi2", args=(1,)).pvalue > ALPHA


@every_source
def test_uniforms_are_uniform_and_never_one(source):
    drawn = source().uniform(200_000)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert stats.kstest(drawn.numpy(), "uniform").pvalue > ALPHA


@every_source
def test_coordinates_and_draws_are_uncorrelated(source):
    noise, draws, size = source(), 20_000, 16
    table = torch.stack([noise.normal(size) for _ in range(draws)])
    covariance = table.T @ table / draws
    assert (covariance - torch.eye(size)).abs().max() < 7.5 / draws**0.5
    assert (table[1:].T @ table[:-1] / draws).abs().max() < 7.5 / draws**0.5
    # squares are where a shared Box-Muller radius would show
    squares = table.square() - 1
    correlation = squares.T @ squares / draws / 2
    assert (correlation - torch.eye(size)).abs().max() < 15 / draws**0.5


def test_noise_reaches_further_than_float32_normals_can():
    # the word 0 gives the longest radius
    assert box_muller(torch.tensor([0, 0])).max() == pytest.approx(math.sqrt(2 * 54 * math.log(2)))
    assert box_muller(torch.tensor([0, 0])).max() > 8.5
    extreme = torch.tensor([0, -1, 2**63 - 1, -(2**63), 0, -1, 2**63 - 1, -(2**63)])
    assert torch.isfinite(box_muller(extreme)).all()


@every_source
def test_noise_is_finer_than_a_float32_lattice(source):
    drawn = source().normal(200_000)
    assert len(drawn.unique()) == len(drawn)
    assert len(drawn.float().unique()) < len(drawn)  # the control: float32 repeats itself


@every_source
@pytest.mark.parametrize("count", [0, 1, 2, 3, 1001, 2**14 - 1, 2**14 + 1, 100_001])
def test_any_number_of_normals_can_be_drawn(count, source):
    drawn = source().normal(count)
    assert drawn.shape == (count,)
    assert len(drawn.unique()) == count
    assert source().uniform(count).shape == (count,)


@pytest.mark.parametrize("source", GENERATORS, indirect=True)
def test_secure_noise_never_repeats(source):
    one, other = source(), source()
    seen = torch.stack([source.normal(64) for _ in range(50) for source in (one, other)])
    assert len(seen.unique()) == seen.numel()


def test_seeded_noise_repeats_and_says_that_it_is_not_private():
    assert torch.equal(SeededNoise(5).normal(64), SeededNoise(5).normal(64))
    assert not torch.equal(SeededNoise(5).normal(64), SeededNoise(6).normal(64))
    assert not SeededNoise(5).private
    assert SecureNoise().private


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("source", GENERATORS, indirect=True)
def test_a_forked_process_draws_other_noise(source):
    secure = source()
    secure.normal(3)
    theirs, ours = draws_after_fork(secure)
    assert len(theirs) == 16
    assert not (theirs == ours).any()
    theirs, ours = draws_after_fork(SeededNoise(1))  # the control: a seed survives the fork
    assert torch.equal(theirs, ours)


def test_the_keystream_does_not_end_in_the_middle_of_a_run(monkeypatch):
    # the counter block with the largest number, which os.urandom may draw: counting goes on at zero
    monkeypatch.setattr(keystream.os, "urandom", lambda count: b"\xff" * count)
    source = SecureNoise()
    drawn = torch.cat([source.normal(64) for _ in range(4)])
    assert torch.isfinite(drawn).all()
    assert len(drawn.unique()) == len(drawn)


def keys_of(words: int, monkeypatch) -> int:
    """Return how many keys a stream of so many words draws."""
    drawn = []
    monkeypatch.setattr(Keystream, "_entropy", lambda self: drawn.append(os.urandom(32)) or drawn[-1])
    stream, block = Keystream(), np.empty(64, np.uint64)
    for _ in range(words // 64):
        stream.fill(block)
    assert len(set(drawn)) == len(drawn)
    return len(drawn)


def test_a_key_is_replaced_after_a_bounded_number_of_bytes(monkeypatch):
    assert keys_of(640, monkeypatch) == 1
    monkeypatch.setattr(keystream, "BYTES_PER_KEY", 1024)
    assert keys_of(640, monkeypatch) == 5  # 5 KiB


def test_the_keystream_is_that_of_aes(monkeypatch):
    # FIPS 197, appendix C.1: the block 00112233... under the key 00010203...
    key, block = bytes(range(16)), bytes(17 * i for i in range(16))
    monkeypatch.setattr(Keystream, "_entropy", lambda self: key + block)
    words = np.empty(2, np.uint64)
    Keystream().fill(words)
    assert words.tobytes().hex() == "69c4e0d86a7b0430d8cdb78070b4c55a"
