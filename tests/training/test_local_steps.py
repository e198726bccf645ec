"""DP-LSGD through the Trainer: what is released, how it combines, what is logged."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import gnomon
from gnomon.accounting import FullBatch
from gnomon.cli.main import main
from gnomon.clipping import Automatic, PerLayer
from gnomon.errors import SettingError
from gnomon.methods import ClipThenProject, LocalSteps, Method, dp_lsgd, dp_sgd, pcdp
from gnomon.release import SeededNoise
from gnomon.subspaces import PublicEigenspace, RandomMask
from gnomon.updates import local_sgd
from tests.helpers import LOSS

D = torch.float64


def setting():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(D)
    draw = lambda n: (torch.randn(n, 6, dtype=D), torch.randint(0, 3, (n,)))
    return model, draw(12), draw(9)


def change(method, data, *, bound=0.05, lr=1.0, sigma=0.0, steps=1, optimizer=None, **settings):
    model, _, _ = setting()
    before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    trainer = gnomon.Trainer(
        model, LOSS, (optimizer or torch.optim.SGD)(model.parameters(), lr=lr), method=method, max_grad_norm=bound,
        sampler=FullBatch(), expected_batch_size=4, noise_multiplier=sigma, target_delta=1e-5, steps=steps,
        noise=SeededNoise(0), progress=False, **settings,
    )  # fmt: skip
    trainer.fit(data)
    return torch.cat([p.detach().flatten() for p in model.parameters()]) - before, trainer


def test_one_local_step_is_dp_sgd_with_the_bound_on_step_size_times_gradient():
    _, data, _ = setting()
    local, _ = change(dp_lsgd(steps=1, lr=0.5), data, bound=0.05, steps=3)
    plain, _ = change(dp_sgd(), data, bound=0.05 / 0.5, lr=0.5, steps=3)
    assert torch.allclose(local, plain, rtol=1e-10, atol=1e-14)


def test_noise_of_one_local_step_is_that_of_dp_sgd():
    _, data, _ = setting()
    silent, _ = change(dp_lsgd(steps=1, lr=0.5), data, bound=0.05)
    local, _ = change(dp_lsgd(steps=1, lr=0.5), data, bound=0.05, sigma=2.0)
    plain, _ = change(dp_sgd(), data, bound=0.05 / 0.5, lr=0.5, sigma=2.0)
    assert float((local - silent).norm()) > 0.1
    assert torch.allclose(local - silent, silent - plain, atol=1e-6)  # the same draws, with the other sign


def test_the_step_is_the_sum_of_clipped_displacements_over_the_declared_size():
    model, (x, y), _ = setting()
    rows = local_sgd(model, LOSS, x, y, steps=5, lr=0.3).dense()
    rows = rows * (0.05 / rows.norm(dim=1, keepdim=True)).clamp_max(1)
    found, _ = change(dp_lsgd(steps=5, lr=0.3), (x, y))
    assert torch.allclose(found, rows.sum(0) / 4, rtol=1e-8, atol=1e-12)


def test_local_steps_descend():
    _, data, _ = setting()
    model, _, _ = setting()
    before = float(LOSS(model(data[0]), data[1]).mean())
    _, trainer = change(dp_lsgd(steps=5, lr=0.1), data, bound=1.0, steps=5)
    assert float(LOSS(trainer.model(data[0]), data[1]).mean()) < before - 0.1


def test_a_server_optimizer_works_on_the_released_displacement():
    _, data, _ = setting()
    adam, _ = change(dp_lsgd(steps=3, lr=0.1), data, lr=0.01, optimizer=torch.optim.Adam)
    assert torch.allclose(adam.abs(), torch.full_like(adam, 0.01), rtol=1e-2)  # Adam's first step


METHODS = {
    "ambient": lambda public: dp_lsgd(steps=4, lr=0.5),
    "eigenspace": lambda public: dp_lsgd(steps=4, lr=0.5, subspace=PublicEigenspace(public, 5)),
    "projected after": lambda public: dp_lsgd(
        steps=4, lr=0.5, subspace=PublicEigenspace(public, 5), route=ClipThenProject()
    ),
    "mask, automatic": lambda public: dp_lsgd(steps=4, lr=0.5, subspace=RandomMask(0.3), clip=Automatic()),
    "per layer": lambda public: dp_lsgd(steps=4, lr=0.5, clip=PerLayer()),
    "momentum, pre-noise": lambda public: dp_lsgd(steps=4, lr=0.5, momentum=0.9, pre_noise=0.01),
    "own": lambda public: Method("own", LocalSteps(2, 0.5), PublicEigenspace(public, 3, per_tensor=True)),
}


@pytest.mark.parametrize("name", METHODS)
def test_one_person_moves_the_release_by_at_most_the_bound(name):
    _, (x, y), public = setting()
    for factor in (1.0, 1e3):
        x = x.clone()
        x[-1] *= factor
        whole, _ = change(METHODS[name](public), (x, y))
        without, _ = change(METHODS[name](public), (x[:-1], y[:-1]))
        if "pre-noise" in name:  # whose seeded draws differ with the batch
            continue
        assert float((whole - without).norm()) * 4 <= 0.05 * (1 + 1e-6)
        assert float((whole - without).norm()) > 0


def test_physical_batches_change_nothing():
    _, data, _ = setting()
    whole, _ = change(dp_lsgd(steps=4, lr=0.5), data)
    cut, _ = change(dp_lsgd(steps=4, lr=0.5), data, max_physical_batch_size=5)
    assert torch.allclose(whole, cut, rtol=1e-10, atol=1e-14)


def test_incremental_norms_are_logged_in_units_of_the_local_step():
    model, (x, y), _ = setting()
    beyond = (local_sgd(model, LOSS, x, y, steps=3, lr=0.5).norms() - 0.05).clamp_min(0) / 0.5
    fresh = gnomon.Trainer(
        model, LOSS, torch.optim.SGD(model.parameters(), lr=1.0), method=dp_lsgd(steps=3, lr=0.5), max_grad_norm=0.05,
        sampler=FullBatch(), expected_batch_size=4, noise_multiplier=0.0, target_delta=1e-5, steps=1, progress=False,
    )  # fmt: skip
    found = fresh.fit((x, y)).history[0]
    assert found["unprotected/incremental/mean"] == pytest.approx(float(beyond.mean()), rel=1e-6)
    assert found["unprotected/incremental/std"] == pytest.approx(float(beyond.std(correction=0)), rel=1e-6)
    for name, share in (("q25", 0.25), ("q50", 0.5), ("q75", 0.75)):
        assert found[f"unprotected/incremental/{name}"] == pytest.approx(float(beyond.quantile(share)), rel=1e-6)


def test_settings_out_of_range_are_refused_when_the_method_is_made():
    with pytest.raises(SettingError, match="local-steps"):
        dp_lsgd(steps=0)
    with pytest.raises(SettingError, match="local-lr"):
        LocalSteps(2, -1.0)


def test_the_command_line_takes_local_steps(tmp_path, capsys):
    run = ["train", "--data", "digits", "--epochs", "2", "--insecure-noise-seed", "0", "--quiet"]
    assert main([*run, "--method", "dp-lsgd", "--local-steps", "3", "--out", str(tmp_path / "a")]) == 0
    statement = json.loads((tmp_path / "a" / "statement.json").read_text())
    assert statement["method"].startswith("dp-lsgd: 3 local steps of 0.025")
    assert (
        main([*run, "--method", "pcdp", "--local-steps", "2", "--local-lr", "0.1", "--out", str(tmp_path / "b")]) == 0
    )
    statement = json.loads((tmp_path / "b" / "statement.json").read_text())
    assert "2 local steps of 0.1" in statement["method"]
    assert main([*run, "--local-lr", "0.1", "--out", str(tmp_path / "c")]) == 2
    assert "--local-lr applies to local steps only: set local-steps as well" in capsys.readouterr().err


def test_any_method_composes_with_local_steps():
    _, data, public = setting()
    from dataclasses import replace

    composed = replace(pcdp(public, rank=4), update=LocalSteps(3, 0.2))
    assert composed.describe() == (
        "pcdp: 3 local steps of 0.2, public eigenspace, rank 4, projected before clipping, flat clipping"
    )
    moved, _ = change(composed, data, bound=1.0)
    assert float(moved.norm()) > 0
