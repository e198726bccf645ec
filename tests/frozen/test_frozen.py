"""Outputs of the whole package are those that were frozen: to the bit on one machine, within rounding elsewhere."""

from __future__ import annotations

import pytest

from gnomon import clipping, federated, methods
from tests.frozen.cases import CASES, METHODS, STRATEGIES, TIES, outputs_of
from tests.frozen.recorded import FILE, RELATIVE, differences, machine, plain, read

FROZEN = read()
SAME_MACHINE = FROZEN["machine"] == machine()


@pytest.mark.parametrize("name", CASES)
def test_outputs_are_those_that_were_frozen(name):
    if name in TIES and not SAME_MACHINE:
        pytest.skip("rounding decides the outcome of this case, and the file is of another machine")
    found = list(differences(FROZEN["cases"][name], plain(outputs_of(name)), name, exact=SAME_MACHINE))
    assert not found, "\n" + "\n".join(map(str, found))


def test_this_machine_can_compare_bits():
    if not SAME_MACHINE:
        pytest.skip(f"frozen on {FROZEN['machine']}, this is {machine()}: compared within {RELATIVE:g}")


def test_every_case_is_frozen_and_every_frozen_case_is_run():
    assert set(FROZEN["cases"]) == set(CASES), "run: python -m tests.frozen.freeze"


def test_every_method_strategy_and_clip_rule_has_a_case():
    assert set(METHODS) == set(methods.METHODS)
    assert set(STRATEGIES) == set(federated.STRATEGIES)
    assert {f"clip/{name}" for name in clipping.RULES} <= set(CASES)


def test_the_file_stays_small():
    assert FILE.stat().st_size < 200_000


def test_a_changed_bit_a_changed_number_and_a_changed_word_are_told_apart():
    import torch

    value = torch.tensor([1.0, 2.0, 3.0, 4.0])
    nudged = value * (1 + 2**-23)
    before = plain({"w": value, "n": 1.0, "s": "old", "r": [{"a": 1.0}, {"a": 2.0}]})

    def found(exact: bool = True, **changes):
        now = plain({"w": value, "n": 1.0, "s": "old", "r": [{"a": 1.0}, {"a": 2.0}]} | changes)
        return list(differences(before, now, "case", exact))

    assert not found()
    assert "ROUNDING" in str(found(w=nudged)[0])
    assert not found(exact=False, w=nudged)
    assert "ANOTHER VALUE" in str(found(exact=False, w=2 * value)[0])
    assert [one.words for one in found(s="new")] == [True]
    assert [one.words for one in found(n=1.5)] == [False]
    assert found(n="1.0")
    assert found(n=1), "a whole number is another type"
    assert found(w=value.double())
    assert found(exact=False, w=value.double())
    assert found(r=[{"a": 1.5}, {"a": 2.0}]), "in a record that is not shown"
    assert found(r=[{"a": 1.0}, {"b": 2.0}])
