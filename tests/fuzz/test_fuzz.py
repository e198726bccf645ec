"""The fuzzer in short: known seeds and a fixed range of new ones. `make soak` tries new ones for an hour."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gnomon.clipping import RULES
from gnomon.methods import METHODS
from gnomon.release import door
from gnomon.updates import assembly
from gnomon.updates.leaves import factored
from tests.fuzz.__main__ import main
from tests.fuzz.cases import case
from tests.fuzz.checks import Broken, Checks, Tally, check

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")

KNOWN = [
    int(line.split()[0])
    for line in (Path(__file__).parent / "seeds.txt").read_text().splitlines()
    if line.strip() and not line.startswith("#")
]
FIRST, BLOCKS, EACH = 10_000, 12, 10


@pytest.mark.parametrize("seed", KNOWN)
def test_what_was_mended_stays_mended(seed):
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_claim_holds_for_random_models_losses_records_and_neighbours(block):
    tally = Tally()
    for seed in range(FIRST + block * EACH, FIRST + (block + 1) * EACH):
        check(seed, tally)
    assert tally.cases == EACH
    assert tally.worst > 0.9  # neighbours that come nowhere near the bound would show nothing
    assert len(tally.unsteady) <= 1


def test_the_short_form_has_every_method_and_every_rule():
    drawn = [method for seed in range(FIRST, FIRST + BLOCKS * EACH) for method in Checks(case(seed), Tally()).methods()]
    assert {method.name for method in drawn} == set(METHODS)
    plain = {method.clip.name for method in drawn if method.name == "dp-sgd"}
    assert plain >= {make().name for make in RULES.values()}


def test_a_seed_is_always_the_same_case():
    one, two = case(FIRST), case(FIRST)
    assert one.title == two.title
    assert all(torch.equal(p, q) for p, q in zip(one.model.parameters(), two.model.parameters(), strict=True))


def caught(seeds: range) -> str:
    """The first claim that does not hold for any of these seeds."""
    for seed in seeds:
        try:
            check(seed)
        except Broken as error:
            return str(error)
    return ""


def test_a_door_that_does_not_bound_is_caught_and_the_message_repeats_the_case(monkeypatch):
    monkeypatch.setattr(door, "bounded", lambda weights, norms, bound: 1.01 * weights.double())
    message = caught(range(FIRST, FIRST + EACH))
    assert "moves the sum by 1.0" in message
    assert "python -m tests.fuzz 1000" in message


def test_norms_that_are_not_those_of_the_updates_are_caught(monkeypatch):
    exact = factored.row_square_norms
    monkeypatch.setattr(factored, "row_square_norms", lambda rows: exact(rows) * 0.999)
    assert "norms of" in caught(range(FIRST, FIRST + EACH))


def test_samples_that_swap_their_updates_are_caught(monkeypatch):
    plain = assembly._first
    monkeypatch.setattr(assembly, "_first", lambda grads: plain(grads).flip(0))
    assert "not those of a loop" in caught(range(FIRST, FIRST + 2 * EACH))


def test_the_command_repeats_a_case_and_says_what_was_checked(capsys):
    assert main([str(FIRST)]) == 0
    assert "1 models" in capsys.readouterr().out
