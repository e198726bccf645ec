"""Partitions give every record to at most one client, as their names say."""

from __future__ import annotations

import pytest
import torch

from gnomon.data import IID, ByKey, Dirichlet, OneClass, Shards
from gnomon.errors import SettingError

TARGETS = torch.arange(10).repeat(50)
EVERY = [IID(), Dirichlet(0.1), Dirichlet(10.0), Shards(2), OneClass(), OneClass(0.2), ByKey(TARGETS)]


@pytest.mark.parametrize("rule", EVERY, ids=lambda rule: rule.name)
def test_every_record_belongs_to_exactly_one_client_and_the_seed_decides(rule):
    parts = rule.split(TARGETS, 10, seed=1)
    assert torch.cat(parts).sort().values.tolist() == list(range(len(TARGETS)))
    assert all(torch.equal(a, b) for a, b in zip(parts, rule.split(TARGETS, 10, seed=1), strict=True))


def variety(parts: list[torch.Tensor]) -> float:
    """How many classes a client holds, on average."""
    return sum(len(TARGETS[part].unique()) for part in parts) / len(parts)


def test_skew_rises_from_iid_to_one_class():
    found = [variety(rule.split(TARGETS, 10)) for rule in (OneClass(), Shards(2), Dirichlet(0.1), IID())]
    assert found[0] == 1
    assert found[0] < found[1] <= 4
    assert found[2] < 6 < found[3] == 10


def test_shards_have_equal_sizes_and_dirichlet_gives_everybody_the_least():
    assert {len(part) for part in Shards(2).split(TARGETS, 10)} == {50}
    assert min(map(len, Dirichlet(0.05, least=10).split(TARGETS, 10, seed=3))) >= 10


def test_a_share_of_other_classes():
    parts = OneClass(0.2).split(TARGETS, 10)
    own = [float((TARGETS[part] == TARGETS[part].mode().values).float().mean()) for part in parts]
    assert 0.7 < sum(own) / len(own) < 0.95


def test_equal_keys_stay_together():
    keys = [i % 7 for i in range(100)]
    parts = ByKey(keys).split(torch.zeros(100), 3)
    held = [{keys[i] for i in part.tolist()} for part in parts]
    assert sum(map(len, held)) == 7


@pytest.mark.parametrize(
    ("rule", "clients", "named"),
    [
        (IID(), 501, "clients"),
        (OneClass(), 11, None),
        (ByKey([0, 1] * 250), 3, "clients"),
        (Dirichlet(1e-3, 60), 10, "alpha"),
    ],
)
def test_what_cannot_be_is_refused_by_name(rule, clients, named):
    if named is None:
        assert len(rule.split(TARGETS, clients)) == clients  # two clients share a class
        return
    with pytest.raises(SettingError, match=named):
        rule.split(TARGETS, clients)


def test_small_keys_share_a_client_and_too_small_a_client_is_an_error_that_says_what_fits():
    keys = ["big"] * 50 + ["middle"] * 30 + ["small"] * 3 + ["tiny"] * 2
    assert sorted(map(len, ByKey(keys).split(torch.zeros(85), 3))) == [5, 30, 50]
    assert sorted(map(len, ByKey(keys, least=10).split(torch.zeros(85), 2))) == [35, 50]
    with pytest.raises(SettingError, match=r"at most 2: with 3 clients one has 5 records, fewer than 10"):
        ByKey(keys, least=10).split(torch.zeros(85), 3)
