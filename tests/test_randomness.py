"""The noise is normal, never repeats, and is never shared between processes."""

from __future__ import annotations

import math
import os

import pytest
import torch
from scipy import stats

from gnomon import randomness as noise_module
from gnomon.randomness import box_muller
from gnomon.release import SecureNoise, SeededNoise

ALPHA = 1e-6
"""How often a test of randomness may fail by chance."""

SOURCES = [SecureNoise, lambda: SeededNoise(3)]


@pytest.mark.parametrize("source", SOURCES)
def test_noise_is_standard_normal(source):
    drawn = source().normal(200_001)
    assert drawn.dtype is torch.float64
    assert drawn.shape == (200_001,)
    assert stats.kstest(drawn.numpy(), "norm").pvalue > ALPHA
    assert stats.kstest(drawn.square().numpy(), "chi2", args=(1,)).pvalue > ALPHA


@pytest.mark.parametrize("source", SOURCES)
def test_uniforms_are_uniform_and_never_one(source):
    drawn = source().uniform(200_000)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert stats.kstest(drawn.numpy(), "uniform").pvalue > ALPHA


@pytest.mark.parametrize("source", SOURCES)
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


def test_noise_is_finer_than_a_float32_lattice():
    drawn = SecureNoise().normal(200_000)
    assert len(drawn.unique()) == len(drawn)
    assert len(drawn.float().unique()) < len(drawn)  # the control: float32 repeats itself


@pytest.mark.parametrize("count", [0, 1, 2, 3, 1001])
def test_any_number_of_normals_can_be_drawn(count):
    for source in SOURCES:
        assert source().normal(count).shape == (count,)


def test_secure_noise_never_repeats():
    one, other = SecureNoise(), SecureNoise()
    seen = torch.stack([source.normal(64) for _ in range(50) for source in (one, other)])
    assert len(seen.unique()) == seen.numel()


def test_seeded_noise_repeats_and_says_that_it_is_not_private():
    assert torch.equal(SeededNoise(5).normal(64), SeededNoise(5).normal(64))
    assert not torch.equal(SeededNoise(5).normal(64), SeededNoise(6).normal(64))
    assert not SeededNoise(5).private
    assert SecureNoise().private


def after_fork(source) -> tuple[torch.Tensor, torch.Tensor]:
    """What a child and its parent draw next from a source that both have."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(send, source.normal(16).numpy().tobytes())
        finally:
            os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as stream:
        drawn = torch.frombuffer(bytearray(stream.read()), dtype=torch.float64)
    os.waitpid(child, 0)
    return drawn, source.normal(16)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_draws_other_noise():
    secure = SecureNoise()
    secure.normal(3)
    theirs, ours = after_fork(secure)
    assert len(theirs) == 16
    assert not (theirs == ours).any()
    theirs, ours = after_fork(SeededNoise(1))  # the control: a seed survives the fork
    assert torch.equal(theirs, ours)


def test_the_keystream_does_not_end_in_the_middle_of_a_run(monkeypatch):
    # a random start of the 32-bit block counter: the worst one that os.urandom can draw
    monkeypatch.setattr(noise_module.os, "urandom", lambda count: b"\xff" * count)
    source = SecureNoise()
    assert all(torch.isfinite(source.normal(64)).all() for _ in range(4))
