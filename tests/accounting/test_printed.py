"""No number that people read is below the epsilon that was spent."""

from __future__ import annotations

import json
import math
import re

import pytest

from gnomon.accounting import Account, Epsilon, FullBatch, Poisson, digits, epsilon
from gnomon.audit import Claim
from gnomon.audit.report import Report
from gnomon.cli.main import main
from gnomon.figures import curve as curves
from gnomon.figures.comparison import comparison_pictures
from gnomon.figures.curve import training_curve
from gnomon.figures.training import training_pictures
from gnomon.ledger import Budget, Ledger, OverBudget
from gnomon.report import report
from gnomon.statement.explanation import explain, guessing_accuracy
from gnomon.statement.statement import Statement
from gnomon.studies.compare import ComparisonRow, markdown
from gnomon.studies.reproduce.result import _range
from gnomon.training.progress import Bar

AWKWARD = [0.01006, 0.5004, 0.1, 0.3, 0.70001, 1.0, 2.99949, 12.3451, 0.000123456, 0.00990001, 1234.5678, 3.00049e6]
"""Values that rounding to the nearest would print below themselves, and some that it prints as they are."""


def spent(value: float) -> Epsilon:
    return Epsilon(value, delta=1e-5, adjacency="add-remove", sampler="Poisson q = 0.1", accountant="PLD",
                   noise_multiplier=13.18, steps=1234)  # fmt: skip


def numbers(text: str, before: str = r"epsilon (?:= |would be )?") -> list[float]:
    return [float(one) for one in re.findall(rf"{before}([0-9][0-9.e+-]*[0-9]|[0-9])", text)]


@pytest.mark.parametrize("value", AWKWARD)
@pytest.mark.parametrize("form", [{}, {"decimals": 2}, {"decimals": 1}, {"significant": 2}, {"significant": 3}])
def test_a_printed_epsilon_is_never_below_itself_and_hardly_above(value, form):
    shown, below = float(digits(value, **form)), float(digits(value, **form, lower=True))
    last = 10.0 ** -form.get("decimals", 3)
    room = max(last, value / 10 ** (form.get("significant", form.get("decimals", 3)) - 1))
    assert below <= value <= shown < value + room


def test_values_of_few_digits_are_printed_as_they_are():
    assert [digits(one) for one in (0.1, 0.3, 0.7, 1.0, 8.0)] == ["0.100", "0.300", "0.700", "1.000", "8.000"]
    assert digits(0.0) == "0.000"
    assert digits(math.inf) == digits(None) == "infinite"


@pytest.mark.parametrize("value", AWKWARD)
def test_an_epsilon_and_its_statement_do_not_print_less_than_was_spent(value):
    ledger = {"epsilon": value, "accountant": "PLD", "runs": 2, "steps": 9, "budget": None, "run": "", "head": "1:ab"}
    text = Statement.of(spent(value), method="dp-sgd", max_grad_norm=1.0, expected_batch_size=10, private_noise=True,
                        ledger=ledger).text()  # fmt: skip
    found = numbers(f"{text}\n{spent(value)!r}", "epsilon = ")
    assert len(found) == 3
    assert min(found) >= value


def test_the_account_command_does_not_print_less_than_the_exact_epsilon(capsys):
    rounded_down = 0
    for sigma in ("1.3", "1.7", "2.1", "2.9"):
        settings = ["account", "--noise-multiplier", sigma, "--sample-rate", "1", "--steps", "10"]
        main([*settings, "--json"])
        exact = json.loads(capsys.readouterr().out)["epsilon"]
        main(settings)
        (printed,) = numbers(capsys.readouterr().out, "epsilon = ")
        assert printed >= exact
        rounded_down += float(f"{exact:.3f}") < exact
    assert rounded_down


def test_noise_that_the_account_command_prints_for_a_target_reaches_it(capsys):
    for target in (0.9, 1.0, 1.1, 1.2):
        main(["account", "--target-epsilon", str(target), "--sample-rate", "1", "--steps", "10"])
        sigma = re.search(r"noise multiplier = (\S+)", capsys.readouterr().out)
        assert sigma is not None
        assert epsilon(noise_multiplier=float(sigma[1]), sample_rate=1.0, steps=10, delta=1e-5) <= target


@pytest.mark.parametrize("value", [0.01006, 0.5004, 2.9994])
def test_the_progress_bar_does_not_show_less_than_was_spent(value, capsys):
    with Bar("dp-sgd", total=2, done=0, visible=True) as bar:
        bar.tell({"epsilon": value, "step": 1, "validation/accuracy": 0.5})
    assert min(numbers(capsys.readouterr().err, "epsilon=")) >= value


@pytest.mark.parametrize("value", [0.01006, 0.5004, 2.9994])
def test_pages_and_pictures_do_not_show_less_than_was_spent(value, tmp_path, monkeypatch):
    stated = Statement.of(spent(value), method="dp-sgd", max_grad_norm=1.0, expected_batch_size=10, private_noise=True)
    rows = [{"epoch": 1.0, "step": 1234, "epsilon": value, "validation/accuracy": 0.5}]
    for name in ("one", "two"):
        place = tmp_path / name
        place.mkdir()
        # an account that cannot be recomputed: the page takes the statement at its word
        (place / "statement.json").write_text(json.dumps(stated.to_dict() | {"sampler": "of my own"}))
        (place / "metrics.jsonl").write_text(json.dumps(rows[0]))
    page = report([tmp_path / "one", tmp_path / "two"], tmp_path / "page.html", figures=False).read_text()
    shown = numbers(page, "epsilon = ") + numbers(page, r"<dt>epsilon</dt><dd>") + numbers(page, rf'"{value}">')
    assert len(shown) >= 6
    assert min(shown) >= value
    alts = " ".join(one.alt for one in training_pictures(rows))
    assert min(numbers(alts) + numbers(alts, r"epsilon rises from ")) >= value
    drawn: list[str] = []
    monkeypatch.setattr(curves.Axes, "annotate", lambda self, text, *_, **__: drawn.append(text))
    training_curve(rows, "toy", tmp_path / "curve.png")
    assert float(drawn[-1]) >= value


def test_what_follows_from_an_epsilon_is_not_less_either():
    for value in (0.01006, 0.5004, 1.0, 2.9994):
        stated = {"epsilon": value, "delta": 1e-5, "adjacency": "add-remove", "guarantee": True}
        said = " ".join(explain(stated))
        assert numbers(said, "is right at most ")[0] >= 100 * guessing_accuracy(value, 1e-5)
        assert numbers(said, "becomes at most ")[0] >= math.exp(value)
        assert numbers(" ".join(explain(stated | {"guarantee": False})))[0] >= value


@pytest.mark.parametrize("value", [0.01006, 0.5004, 2.9994])
def test_tables_do_not_show_less_than_was_spent(value):
    row = ComparisonRow("dp-sgd", 2.0, value, 0.6, 0.1, 2, 1.0)
    assert min(numbers(markdown([row]), "epsilon ")) >= value
    assert min(numbers(comparison_pictures([row], [])[0].alt)) >= value
    assert float(_range([value])) >= value


def test_what_the_ledger_shows_is_not_less_than_its_runs_cost(tmp_path, capsys):
    book = Ledger(tmp_path / "ledger.sqlite")
    for number, noise in enumerate((3.1, 4.7, 5.9, 8.3)):
        book.reserve(book.open(book.dataset(f"set{number}"), Account(FullBatch(), noise), steps=16))
    book.shut()
    place = ["--ledger", str(tmp_path / "ledger.sqlite")]
    assert main(["ledger", "show", *place, "--json"]) == 0
    exact = [json.loads(line)["epsilon"] for line in capsys.readouterr().out.splitlines()]
    assert main(["ledger", "show", *place]) == 0
    printed = numbers(capsys.readouterr().out, "spent   epsilon = ")
    assert any(float(f"{one:.3f}") < one for one in exact)
    assert all(shown >= one for shown, one in zip(printed, exact, strict=True))


def test_a_refusal_of_the_ledger_rounds_what_is_spent_up_and_what_is_left_down(tmp_path):
    book = Ledger(tmp_path / "ledger.sqlite")
    dataset = book.dataset("patients")
    for noise in (3.1, 4.7, 5.9):
        book.reserve(book.open(dataset, Account(FullBatch(), noise), steps=16))
    total = book.total(dataset, 1e-5).epsilon
    budget = float(total) + 0.0123456
    book.set_budget(dataset, Budget(budget, 1e-5))
    with pytest.raises(OverBudget) as raised:
        book.open(dataset, Account(FullBatch(), 3.1), steps=16)
    book.shut()
    said = str(raised.value)
    assert f"budget epsilon = {budget:.15g}" in said  # what was given, as it was given
    (left,) = numbers(said, "open runs, ")
    (used,) = re.findall(r"([0-9.]+) is spent", said)
    assert left <= 0.0123456
    assert float(used) + left <= budget + 1e-3
    assert float(used) >= budget - 0.0123456 - 1e-9


def test_an_audit_rounds_the_claim_up_and_its_lower_bounds_down():
    claim = Claim(1.4147, Poisson(0.01), 1000, 1e-5)
    found = Report(claim, 0.999, (), ())
    assert numbers(found.sentence(), "claimed epsilon ")[0] >= claim.epsilon
    assert float(digits(0.7099, 2, lower=True)) <= 0.7099
