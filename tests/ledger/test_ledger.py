"""The ledger: durable, append-only, added up by data set."""

from __future__ import annotations

import json
import os
import resource
import signal
import sqlite3
import threading

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import gnomon
from gnomon.accounting import Account, FullBatch, Poisson, Shuffled, digits, epsilon
from gnomon.cli.main import main
from gnomon.errors import SettingError
from gnomon.ledger import Budget, Head, Ledger, LedgerError, OverBudget, required_path
from gnomon.ledger.identity import Identity
from gnomon.release import SecureNoise, SeededNoise
from gnomon.statement.verify import _check_steps
from tests import helpers
from tests.helpers import data

DELTA = 1e-5


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(tmp_path / "ledger.sqlite")
    yield made
    made.close()


def trainer(ledger: Ledger | None, **settings) -> gnomon.Trainer:
    defaults = {
        "sample_rate": 1.0,  # without subsampling epsilon is computed at once
        "expected_batch_size": 60,
        "noise_multiplier": 40.0,
        "target_delta": DELTA,
        "steps": 20,
        "ledger": ledger,
    }
    return helpers.trainer(seed=None, lr=0.1, **(defaults | settings))


def edit(ledger: Ledger, sql: str) -> None:
    """Change the file behind the ledger's back, triggers and all."""
    with sqlite3.connect(ledger.path) as connection:
        connection.execute("DROP TRIGGER IF EXISTS no_update")
        connection.execute("DROP TRIGGER IF EXISTS no_delete")
        connection.execute(sql)


def test_tuning_runs_on_the_same_records_add_up(ledger):
    for _ in range(3):
        t = trainer(ledger)
        t.fit(data())
    total = t.ledger_session.total(DELTA)
    assert (total.runs, total.steps) == (3, 60)
    assert total.epsilon == epsilon(noise_multiplier=40.0, sample_rate=1.0, steps=60, delta=DELTA)
    assert total.epsilon > t.epsilon()


def test_a_data_set_that_has_a_name_has_its_total_in_the_statement(ledger):
    for _ in range(3):
        t = trainer(ledger, dataset="patients")
        t.fit(data())
    total = t.ledger_session.total(DELTA)
    stated = json.loads(t.statement().json())["ledger"]
    assert (stated["epsilon"], stated["runs"], stated["dataset"]) == (total.epsilon, 3, "name:patients")
    assert f"{digits(total.epsilon)}" in t.statement().text()


def handed_on(place, *, shared: bool) -> tuple[dict, list[str]]:
    """A run's statement after one on other records, one of which may be shared. What is drawn at random is left out."""
    ledger = Ledger(place)
    (a, y), (b, z) = data(seed=1), data(seed=2)
    trainer(ledger).fit((a, y))
    t = trainer(ledger)
    t.fit((torch.cat([b[1:], a[:1] if shared else b[:1]]), z))
    assert t.ledger_session.total(DELTA).runs == 1 + shared
    ledger.close()
    statement = t.statement()
    values = statement.to_dict() | {"written": ""}
    number, _, mark = values["ledger"].pop("head").partition(":")
    text = statement.text().replace(values["ledger"].pop("run"), "").replace(mark, "").replace(statement.written, "")
    return values | {"entries": number}, text.splitlines()


@pytest.mark.filterwarnings("ignore:these records are not in the ledger")
def test_no_one_record_decides_what_a_statement_says(tmp_path):
    apart, together = (handed_on(tmp_path / name, shared=name == "shared") for name in ("apart", "shared"))
    assert apart == together
    assert "`gnomon ledger show`" in "".join(together[1])


def test_one_record_more_does_not_show_in_the_number_of_entries(tmp_path):
    x, y = data()
    numbers = []
    for less in (0, 1):
        ledger = Ledger(tmp_path / str(less))
        trainer(ledger).fit((x, y))
        t = trainer(ledger)
        t.fit((x[less:], y[less:]))
        numbers.append(t.statement().ledger["head"].partition(":")[0])
        ledger.close()
    assert numbers[0] == numbers[1]


def test_records_are_known_again_reordered_relabelled_cut_or_in_another_precision(ledger):
    x, y = data()
    trainer(ledger).fit((x, y))
    changed = [
        (x.flip(0), y.flip(0)),
        (x, 1 - y),
        (x[1:], y[1:]),
        (x[:7], y[:7]),
        (x.double(), y),
        (torch.cat([x, torch.ones(1, 4)]), torch.cat([y, y[:1]])),
    ]
    for number, one in enumerate(changed, start=2):
        t = trainer(ledger)
        t.model.to(one[0].dtype)
        t.fit(one)
        assert t.ledger_session.total(DELTA).runs == number
    other = trainer(ledger)
    other.fit(data(seed=1))
    assert other.ledger_session.total(DELTA).runs == 1


def test_a_set_that_shares_records_with_two_others_joins_them(ledger):
    (a, y), (b, z) = data(seed=1), data(seed=2)
    trainer(ledger).fit((a, y))
    trainer(ledger).fit((b, z))
    t = trainer(ledger)
    t.fit((torch.cat([a, b]), torch.cat([y, z])))
    assert t.ledger_session.total(DELTA).runs == 3
    first = trainer(ledger)
    first.fit((a, y))
    assert first.ledger_session.total(DELTA).runs == 4


def test_what_records_have_paid_is_known_before_another_run_on_them_begins(ledger):
    (a, y), (b, z) = data(seed=1), data(seed=2)
    trainer(ledger).fit((a, y))
    trainer(ledger).fit((b, z))
    waiting = trainer(ledger).ledger_session
    assert waiting.total(DELTA) is None, "nobody knows for which records"
    waiting.identify((torch.cat([a, b]), torch.cat([y, z])))
    assert (waiting.total(DELTA).runs, waiting.total(DELTA).steps) == (2, 40)
    waiting.identify(data(seed=3))
    assert waiting.total(DELTA) is None, "these have paid nothing"
    assert len(ledger.state().datasets) == 2, "and nothing was entered"


def test_a_declared_name_counts_instead_of_the_content(ledger):
    trainer(ledger, dataset="patients").fit(data())
    t = trainer(ledger, dataset="patients")
    t.fit(data(seed=5))
    assert t.ledger_session.total(DELTA).runs == 2


CHANGED = {
    "scaled": lambda x: 2 * x - 1,
    "permuted columns": lambda x: x.flip(1),
    "jittered": lambda x: x + 1e-6,
    "by way of float16": lambda x: x.half().float(),
}


@pytest.mark.parametrize("change", CHANGED)
def test_a_changed_copy_of_known_records_is_told_to_the_data_holder(ledger, change):
    x, y = data()
    trainer(ledger).fit((x, y))
    (known,) = ledger.state().datasets
    copy = CHANGED[change](x)
    with pytest.warns(RuntimeWarning, match=f"not in the ledger, which contains a data set of the same size.*{known}"):
        trainer(ledger).check((copy, y))
    t = trainer(ledger, dataset=known)
    t.fit((copy, y))
    assert t.ledger_session.total(DELTA).runs == 2, "the remedy: the id counts them together"
    assert "dataset" not in t.statement().ledger, "which is still a hash of records"
    assert list(ledger.state().datasets) == [known]


def test_records_of_another_number_or_known_ones_are_no_reason_to_warn(ledger, recwarn):
    x, y = data()
    for one in ((x, y), (x.flip(0), y), (x[1:], y[1:]), data(61, seed=1)):
        trainer(ledger).fit(one)
    assert not [one for one in recwarn if "not in the ledger" in str(one.message)]


def test_a_forgotten_name_is_told(ledger):
    trainer(ledger, dataset="patients").fit(data())
    with pytest.warns(RuntimeWarning, match="with a declared name: name:patients"):
        trainer(ledger).check(data())


@pytest.mark.parametrize("change", CHANGED)
def test_once_there_is_a_budget_by_name_unknown_records_need_a_name(ledger, change):
    x, y = data()
    trainer(ledger).fit((x, y))  # known by content before
    ledger.set_budget(ledger.dataset("patients"), Budget(0.1, DELTA))
    head = ledger.head()
    for act in (lambda t, one: t.check(one), lambda t, one: t.fit(one)):
        t = trainer(ledger)
        with pytest.raises(SettingError, match=r"budget by name, for patients.*--data-id NAME") as error:
            act(t, (CHANGED[change](x), y))
        assert error.value.name == "data-id"
        assert t.account.steps == 0
    with pytest.raises(SettingError, match="budget by name"):
        ledger.dataset(ledger.identify((CHANGED[change](x), y)))
    assert ledger.head() == head, "nothing was entered"
    trainer(ledger).fit((x, y))
    trainer(ledger, dataset="others").fit((CHANGED[change](x), y))
    with pytest.raises(OverBudget):
        trainer(ledger, dataset="patients").fit((CHANGED[change](x), y))


def test_the_command_line_refuses_unknown_records_without_a_name_once_there_is_a_budget_by_name(tmp_path, capsys):
    assert main(["ledger", "budget", "patients", "--epsilon", "3", "--by-name"]) == 0
    for command in (SHORT, ["federate", "--simulate", "--method", "fedavg", "--noise-multiplier", "20", "--quiet"]):
        assert main([*command, "--out", str(tmp_path / "a")]) == 2
        assert "--data-id NAME" in capsys.readouterr().err
        assert not (tmp_path / "a").exists()
    assert main([*SHORT, "--data-id", "digits", "--out", str(tmp_path / "a")]) == 0


class Jittered(Dataset):
    """Augmented: another value each time."""

    def __len__(self):
        return 60

    def __getitem__(self, i):
        return torch.rand(4), 0


def test_data_that_change_when_read_need_a_name(ledger):
    with pytest.raises(SettingError, match="dataset"):
        trainer(ledger).fit(Jittered())
    trainer(ledger, dataset="jittered", steps=1).fit(Jittered())
    assert ledger.total("name:jittered", DELTA).runs == 1


def test_seeded_noise_spends_nothing(ledger):
    t = trainer(ledger, noise=SeededNoise(0))
    t.fit(data())
    assert t.ledger_session.total(DELTA) is None
    assert ledger.head().number == 0


class Watched(SecureNoise):
    """Asks a ledger of its own, as another process would, what is reserved whenever noise is drawn."""

    def __init__(self, path):
        super().__init__()
        self.path, self.drawn, self.reserved = path, 0, []

    def normal(self, count):
        other = Ledger(self.path)
        self.reserved.append(sum(run.reserved for run in other.state().runs.values()))
        other.close()
        self.drawn += 1
        return super().normal(count)


def test_steps_are_reserved_in_blocks_before_the_noise_of_the_first_is_drawn(ledger):
    noise = Watched(ledger.path)
    model = nn.Linear(4, 2, bias=False)  # one draw a step
    gnomon.Trainer(
        model, nn.CrossEntropyLoss(reduction="none"), torch.optim.SGD(model.parameters(), lr=0.1),
        sample_rate=1.0, expected_batch_size=60, noise_multiplier=40.0, target_delta=DELTA, steps=40,
        ledger=ledger, noise=noise, progress=False,
    ).fit(data())  # fmt: skip
    assert noise.reserved == [16] * 16 + [32] * 16 + [40] * 8


def test_no_noise_is_drawn_when_the_ledger_cannot_be_written(ledger, monkeypatch):
    noise = Watched(ledger.path)
    t = trainer(ledger, noise=noise)

    def full(*_):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("gnomon.ledger.file.LedgerRows.append", full)
    before = t.model.weight.clone()
    with pytest.raises(LedgerError, match="nothing was released"):
        t.fit(data())
    assert noise.drawn == 0
    assert torch.equal(before, t.model.weight)


def test_a_limit_of_the_system_stops_the_ledger_and_leaves_it_whole(ledger):
    run = ledger.open_run(ledger.dataset("patients"), Account(FullBatch(), 50.0), 10**6)
    ledger.reserve(run)

    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
        with pytest.raises(LedgerError, match="nothing was released"):
            all(ledger.reserve(run) for _ in range(1000))

    assert os.waitpid(in_child(limited), 0)[1] == 0
    ledger.verify()
    assert ledger.run(run).reserved >= 16
    ledger.reserve(run)


def test_unused_steps_of_a_block_are_not_given_back(ledger):
    t = trainer(ledger, steps=100)
    for _, (inputs, targets) in zip(range(3), t.batches(data()), strict=False):
        t.step(inputs, targets)
    assert t.account.steps == 3
    assert t.ledger_session.total(DELTA).steps == 16


def test_a_step_without_known_data_is_refused_and_releases_nothing(ledger):
    t = trainer(ledger)
    before = t.model.weight.clone()
    with pytest.raises(LedgerError, match="fit"):
        t._step([data()])
    assert torch.equal(before, t.model.weight)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE entries SET content = replace(content, '\"steps\":16', '\"steps\":1') WHERE kind = 'steps'",
        "DELETE FROM entries WHERE kind = 'steps' AND number = 3",
        "UPDATE entries SET time = '2020-01-01T00:00:00+00:00' WHERE number = 2",
        "UPDATE entries SET hash = '0' WHERE number = 3",
        "INSERT INTO entries VALUES (99, '', 'steps', '{}', '0')",
    ],
    ids=["fewer steps", "lost entry", "other time", "other hash", "foreign entry"],
)
def test_an_edited_ledger_is_refused(ledger, sql):
    trainer(ledger).fit(data())
    edit(ledger, sql)
    with pytest.raises(LedgerError, match="entry"):
        Ledger(ledger.path)
    with pytest.raises(LedgerError, match="entry"):
        ledger.verify()


OTHER_KEY = "UPDATE about SET value = '00112233445566778899aabbccddeeff' WHERE name = 'key'"


def test_an_edited_key_is_found(ledger):
    trainer(ledger).fit(data())
    head = ledger.head()
    edit(ledger, OTHER_KEY)
    looks = [lambda: Ledger(ledger.path), ledger.verify, lambda: ledger.verify(head), ledger.head]
    for look in [*looks, lambda: list(ledger.export())]:
        with pytest.raises(LedgerError, match="another key than the one its entries commit to"):
            look()


def test_a_new_commitment_at_the_end_does_not_hide_an_edited_key(ledger):
    trainer(ledger).fit(data())
    head, (run,) = ledger.head(), ledger.state().runs
    edit(ledger, OTHER_KEY)
    with ledger._store.transaction() as rows:
        rows.append("declare", {"run": run, "steps": 30, "key": rows.commitment}, head)
    with pytest.raises(LedgerError, match="another key than the one its entries commit to"):
        Ledger(ledger.path)


def older(path, identity: Identity) -> Ledger:
    """A ledger as the version before wrote it, with a data set and a run: no word of the key or the records."""
    ledger = Ledger(path)
    settings = {name: value for name, value in Account(FullBatch(), 40.0).to_dict().items() if name != "steps"}
    run = {"id": "0123456789ab", "dataset": identity.id, "unit": "one record", "settings": settings}
    with ledger._store.transaction() as rows:
        head = rows.start
        for kind, content in (
            ("dataset", {"id": identity.id, "name": "scans", "sketch": sorted(identity.sketch), "joins": []}),
            ("run", run | {"declared": 16, "label": ""}),
            ("steps", {"run": "0123456789ab", "steps": 16}),
        ):
            entry = rows.append(kind, content, head)
            head = Head(entry.number, entry.hash)
    return ledger


def test_a_ledger_of_an_earlier_version_is_read_and_its_next_entry_binds_the_key(tmp_path, capsys):
    path = tmp_path / "l.sqlite"
    Ledger(path).close()
    ledger = older(path, Ledger(path).identify(data()))
    assert ledger.verify() == 3
    assert main(["ledger", "verify", "--ledger", str(path)]) == 0
    assert "the next entry binds it" in capsys.readouterr().out
    with pytest.warns(RuntimeWarning, match="a data set of the same size"):
        trainer(ledger).check((2 * data()[0], data()[1]))
    t = trainer(ledger)
    t.fit(data())
    assert t.ledger_session.total(DELTA).runs == 2
    assert main(["ledger", "verify", "--ledger", str(path)]) == 0
    assert "the next entry binds it" not in capsys.readouterr().out
    edit(ledger, OTHER_KEY)
    with pytest.raises(LedgerError, match="key"):
        Ledger(path)


def test_entries_cut_off_at_the_end_show_beside_a_head_kept_elsewhere(ledger):
    trainer(ledger).fit(data())
    head = ledger.head()
    edit(ledger, f"DELETE FROM entries WHERE number = {head.number}")
    shorter = Ledger(ledger.path)
    shorter.verify()
    with pytest.raises(LedgerError, match="missing"):
        shorter.verify(head)
    with pytest.raises(LedgerError, match="missing"):  # who had it open notices by itself
        ledger.head()


def test_entries_cannot_be_changed_by_accident(ledger):
    ledger.dataset("patients")
    with sqlite3.connect(ledger.path) as connection:
        for sql in ("UPDATE entries SET kind = 'x'", "DELETE FROM entries"):
            with pytest.raises(sqlite3.Error, match="append only"):
                connection.execute(sql)


@pytest.mark.parametrize("content", [b"not a database at all" * 50, b""])
def test_a_file_that_is_no_ledger_is_named(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    if content:
        with pytest.raises(LedgerError, match=r"notes\.txt"):
            Ledger(path)
        assert path.read_bytes() == content
    else:
        Ledger(path).close()  # an empty file is an empty ledger


def test_another_database_is_refused_and_not_written_to(tmp_path):
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE people (name TEXT)")
    with pytest.raises(LedgerError, match="not a ledger"):
        Ledger(path)
    with sqlite3.connect(path) as connection:
        assert [row[0] for row in connection.execute("SELECT name FROM sqlite_master")] == ["people"]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match="name another file"):
        Ledger(tmp_path / "file" / "ledger.sqlite")


def in_child(work) -> int:
    """Run a function in another process; its process id."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def test_two_processes_on_one_ledger_lose_nothing(tmp_path):
    path = tmp_path / "ledger.sqlite"  # they race to create it, too

    def write():
        ledger = Ledger(path)
        run = ledger.open_run(ledger.dataset("patients"), Account(FullBatch(), 50.0), 320)
        for _ in range(20):
            ledger.reserve(run)

    running = [in_child(write) for _ in range(4)]
    assert [os.waitpid(child, 0)[1] for child in running] == [0] * 4
    total = Ledger(path).total("name:patients", DELTA)
    assert (total.runs, total.steps) == (4, 1280)
    assert Ledger(path).verify() == 1 + 4 + 80


def test_a_forked_child_writes_through_a_connection_of_its_own(ledger):
    dataset = ledger.dataset("patients")
    run = ledger.open_run(dataset, Account(Poisson(0.1), 5.0), 1000)
    child = in_child(lambda: [ledger.reserve(run) for _ in range(5)])
    for _ in range(5):
        ledger.reserve(run)
    assert os.waitpid(child, 0)[1] == 0
    assert ledger.run(run).reserved == 160
    ledger.verify()


def test_a_forked_copy_of_a_run_reserves_for_itself(ledger):
    t = trainer(ledger, steps=100)
    batches = t.batches(data())
    t.step(*next(batches))
    child = in_child(lambda: t.step(*next(batches)))
    assert os.waitpid(child, 0)[1] == 0
    t.step(*next(batches))
    assert t.ledger_session.total(DELTA).steps == 32  # one block each


def test_the_file_is_for_its_owner_alone(ledger):
    assert ledger.path.stat().st_mode & 0o077 == 0


# -- budgets -----------------------------------------------------------------------------------------


def test_a_run_that_would_exceed_the_budget_is_refused_before_it_starts(ledger):
    trainer(ledger).fit(data())
    ledger.set_budget(next(iter(ledger.state().datasets)), Budget(4.0, DELTA))
    entries = ledger.head()
    t = trainer(ledger, steps=2000, noise_multiplier=30.0)
    with pytest.raises(SettingError) as error:
        t.check(data())
    said = str(error.value)
    assert "budget epsilon = 4 at" in said
    assert "is left" in said
    assert ledger.head() == entries
    fitting = int(said.split(" of the 2000 steps", maxsplit=1)[0].rsplit(maxsplit=1)[-1])
    sigma = float(said.split("noise multiplier of ")[1].split(maxsplit=1)[0])
    with pytest.raises(SettingError):
        trainer(ledger, steps=fitting + 1, noise_multiplier=30.0).check(data())
    trainer(ledger, steps=2000, noise_multiplier=sigma).check(data())
    trainer(ledger, steps=fitting, noise_multiplier=30.0).check(data())


def test_open_runs_hold_the_steps_that_they_were_promised(ledger):
    dataset = ledger.dataset("patients")
    ledger.set_budget(dataset, Budget(1.0, DELTA))
    account = Account(FullBatch(), 40.0)
    most = account.affordable(1.0, DELTA)
    first = ledger.open_run(dataset, account, most // 2 + 1)
    with pytest.raises(SettingError, match="gnomon ledger close"):
        ledger.open_run(dataset, account, most // 2 + 1)
    ledger.reserve(first)
    ledger.close_run(first)
    with pytest.raises(LedgerError, match="closed"):
        ledger.reserve(first)
    second = ledger.open_run(dataset, account, most - 16)
    with pytest.raises(SettingError, match="No further step"):
        ledger.reopen_run(first)
    ledger.close_run(second)
    ledger.reopen_run(first)


def test_no_more_steps_are_granted_than_were_declared(ledger):
    run = ledger.open_run(ledger.dataset("patients"), Account(Poisson(0.1), 4.0), 20)
    assert [ledger.reserve(run), ledger.reserve(run)] == [16, 4]
    with pytest.raises(LedgerError, match="no step is left"):
        ledger.reserve(run)


def test_of_two_budgets_that_meet_both_are_kept(ledger):
    x, y = data(60)
    loose, strict = Budget(1.0, 0.1), Budget(1.1, 1e-9)  # the larger epsilon is the smaller budget
    for part, budget in ((x[:30], loose), (x[30:], strict)):
        ledger.set_budget(ledger.dataset(ledger.identify((part, y[:30]))), budget)
    both = ledger.dataset(ledger.identify((x, y)))
    assert ledger.total(both, DELTA).budget == loose, "nothing is spent"
    account = Account(FullBatch(), 40.0)
    with pytest.raises(OverBudget, match=r"epsilon = 1.1 at delta = 1e-09"):
        ledger.open_run(both, account, 100)
    run = ledger.open_run(both, account, 20)
    ledger.reserve(run)
    assert ledger.total(both, DELTA).budget == strict


def test_a_run_gets_more_steps_only_if_the_budget_can_pay_for_them(ledger):
    dataset = ledger.dataset("patients")
    run = ledger.open_run(dataset, Account(Poisson(0.1), 2.0), 10)
    ledger.reserve(run, 10)
    ledger.redeclare(run, 20)
    assert ledger.reserve(run, 30) == 10
    ledger.set_budget(dataset, Budget(float(ledger.total(dataset, 1e-5).epsilon) * 1.01, 1e-5))
    before = ledger.head()
    with pytest.raises(OverBudget):
        ledger.redeclare(run, 200)
    assert ledger.head() == before
    ledger.redeclare(run, 5)
    assert ledger.run(run).declared == 20, "what is reserved stays"
    with pytest.raises(LedgerError, match="no step is left"):
        ledger.reserve(run)


def test_settings_declared_beforehand_pay_the_tight_price(ledger):
    dataset = ledger.dataset("patients")
    for sigma in (3.0, 4.0):
        ledger.reserve(ledger.open_run(dataset, Account(Poisson(0.1), sigma), 200), 200)
    total = ledger.total(dataset, DELTA)
    assert total.declared < total.epsilon
    between = (float(total.declared) + float(total.epsilon)) / 2
    account = Account(Poisson(0.1), 50.0)
    ledger.set_budget(dataset, Budget(between, DELTA))
    with pytest.raises(SettingError):
        ledger.open_run(dataset, account, 1)
    assert ledger.total(dataset, DELTA).counted == total.epsilon
    ledger.set_budget(dataset, Budget(between, DELTA, declared=True))
    ledger.open_run(dataset, account, 1)
    assert ledger.total(dataset, DELTA).counted == total.declared, "what stands beside that budget"


@pytest.mark.parametrize(("epsilon_", "delta"), [(0.0, DELTA), (float("nan"), DELTA), (1.0, 0.0), (1.0, 1.0)])
def test_budgets_that_mean_nothing_are_refused(ledger, epsilon_, delta):
    with pytest.raises(SettingError):
        Budget(epsilon_, delta)


def test_an_abandoned_shuffled_epoch_counts_whole_when_the_run_goes_on(ledger):
    account = Account(Shuffled(40), 40.0)
    t = trainer(ledger, sampler=Shuffled(40), sample_rate=None, steps=200)
    batches = t.batches(data())
    t.step(*next(batches))
    again = trainer(ledger, sampler=Shuffled(40), sample_rate=None, steps=200)
    assert again.ledger_session.resume(t.ledger_session.run, data()) == 40
    account.charge(40)
    assert again.ledger_session.total(DELTA).epsilon == account.epsilon(DELTA)


def test_a_run_without_noise_is_announced_before_it_is_entered_and_named_as_the_cause(tmp_path, capsys, own_ledger):
    quiet = ["train", "--epochs", "1", "--quiet"]
    assert main([*quiet, "--noise-multiplier", "0", "--out", str(tmp_path / "a")]) == 0
    said = capsys.readouterr().err
    assert said.count("permanently adds an infinite epsilon to the ledger") == 1
    (run,) = Ledger(own_ledger).state().runs
    assert main([*SHORT, "--out", str(tmp_path / "b")]) == 0
    assert "infinite" not in capsys.readouterr().err
    assert main(["ledger", "show"]) == 0
    assert f"infinite because of run {run}, which has no noise" in capsys.readouterr().out
    assert main(["ledger", "budget", "digits", "--epsilon", "3"]) == 0
    assert (
        f"permanently because of run {run}: every further run on these data will be refused" in capsys.readouterr().out
    )
    assert main([*SHORT, "--out", str(tmp_path / "c")]) == 2
    assert f"run {run} has an infinite epsilon" in capsys.readouterr().err


def test_a_run_without_noise_warns_when_it_cannot_be_seen_on_the_command_line_either(ledger):
    with pytest.warns(RuntimeWarning, match="permanently adds an infinite epsilon to the ledger"):
        trainer(ledger, noise_multiplier=0.0, steps=1).fit(data())


def test_a_budget_that_is_spent_already_says_that_nothing_fits(ledger, capsys):
    dataset = ledger.dataset("patients")
    ledger.reserve(ledger.open_run(dataset, Account(FullBatch(), 2.0), steps=16))
    budget = ["ledger", "budget", "patients", "--ledger", str(ledger.path), "--epsilon"]
    for epsilon_, full in (("0.5", True), ("500", False)):
        assert main([*budget, epsilon_]) == 0
        assert ("every further run on these data will be refused" in capsys.readouterr().out) == full


# -- where a ledger begins ---------------------------------------------------------------------------

SHORT = ["train", "--epochs", "1", "--quiet", "--noise-multiplier", "20"]


@pytest.mark.parametrize("how", ["flag", "environment", "budget"])
def test_a_ledger_in_a_folder_that_does_not_exist_is_refused(tmp_path, capsys, monkeypatch, how):
    mistyped = tmp_path / "nowhere" / "l.sqlite"
    named = ["--ledger", str(mistyped)] if how != "environment" else []
    monkeypatch.setenv("GNOMON_LEDGER", str(mistyped))
    budget = ["ledger", "budget", "patients", "--epsilon", "3", "--by-name"]
    assert main([*(budget if how == "budget" else [*SHORT, "--out", str(tmp_path / "a")]), *named]) == 2
    assert f"there is no folder {mistyped.parent}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("own", [True, False])
def test_a_ledger_that_begins_is_told_and_stands_in_the_statement_of_its_first_run(tmp_path, capsys, monkeypatch, own):
    path = tmp_path / "gnomon" / "ledger.sqlite"
    if own:  # the user's own file, whose folder is made
        monkeypatch.delenv("GNOMON_LEDGER")
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    else:
        path.parent.mkdir()
    named = [] if own else ["--ledger", str(path)]
    for run, is_new in (("a", True), ("b", False)):
        assert main([*SHORT, *named, "--out", str(tmp_path / run)]) == 0
        said = capsys.readouterr().err
        assert (f"gnomon: new ledger {path}: earlier runs are not recorded in it\n" in said) == is_new
        stated = (tmp_path / run / "statement.txt").read_text()
        assert ("CAVEAT: new ledger ledger.sqlite: earlier runs are not recorded" in stated) == is_new
        assert str(tmp_path) not in stated


def test_a_ledger_that_a_refused_run_left_empty_is_still_new(tmp_path, capsys):
    path = tmp_path / "l.sqlite"
    again = [*SHORT, "--ledger", str(path), "--out", str(tmp_path / "a")]
    assert main([*again, "--max-grad-norm", "-1"]) == 2
    capsys.readouterr()
    assert main(again) == 0
    assert f"new ledger {path}" in capsys.readouterr().err


# -- the command line --------------------------------------------------------------------------------


def test_the_command_line_shows_verifies_exports_and_keeps_a_budget(tmp_path, capsys, own_ledger):
    short = ["train", "--epochs", "1", "--quiet", "--noise-multiplier", "20"]
    assert main([*short, "--out", str(tmp_path / "a")]) == 0
    assert main([*short, "--out", str(tmp_path / "b"), "--private-records", "700"]) == 0
    said = capsys.readouterr().out
    assert "2 runs together" in said
    assert main(["ledger", "show"]) == 0
    assert "2 runs, 9 steps" in capsys.readouterr().out
    assert main(["ledger", "show", "digits", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 9
    head = json.loads((tmp_path / "a" / "statement.json").read_text())["ledger"]["head"]
    assert main(["ledger", "verify", "--head", head]) == 0
    assert main(["ledger", "verify", "--head", "3:abc"]) == 2
    assert main(["ledger", "verify", "--head", "abc"]) == 2
    capsys.readouterr()
    assert main(["ledger", "export"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one.get("kind") for one in lines[1:-1]].count("steps") == 2
    assert Head.parse(lines[-1]["head"]) == Ledger(own_ledger).head()
    with sqlite3.connect(own_ledger) as connection:
        key = connection.execute("SELECT value FROM about WHERE name = 'key'").fetchone()[0]
    assert key not in json.dumps(lines)
    assert main(["ledger", "budget", "digits", "--epsilon", "0.2"]) == 0
    assert main([*short, "--epochs", "30", "--out", str(tmp_path / "c")]) == 2
    assert "noise multiplier of" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


def test_every_verb_of_the_ledger_does_its_work(capsys, own_ledger):
    ledger = Ledger(own_ledger)
    run = ledger.open_run(ledger.dataset("patients"), Account(FullBatch(), 40.0), steps=20)
    ledger.reserve(run)
    ledger.close()
    for words, answer in {
        ("show",): "1 run, 16 steps",
        ("show", "patients"): f"run {run}",
        ("budget", "patients", "--epsilon", "3"): "budget  epsilon = 3 at delta = 1e-05",
        ("close", run): f"run {run} is closed: 16 steps spent, 4 free again",
        ("verify",): "5 entries, the hash chain is intact",
        ("export",): '"kind": "close"',
    }.items():
        assert main(["ledger", *words]) == 0
        assert answer in capsys.readouterr().out
    assert not Ledger(own_ledger).run(run).open
    assert main(["ledger", "close", "nobody"]) == 2
    assert "has no run nobody" in capsys.readouterr().err


@pytest.mark.parametrize("named", [True, False])
def test_a_run_folder_is_checked_against_the_ledger(named, tmp_path, capsys, own_ledger):
    out = tmp_path / "run"
    assert main([*SHORT, *(["--data-id", "scans"] if named else []), "--out", str(out)]) == 0
    verify = ["ledger", "verify", "--run", str(out)]
    capsys.readouterr()
    assert main(verify) == 0
    said = capsys.readouterr().out
    assert "nothing is wrong" in said
    for name in ("model.safetensors", "config.yaml", "epsilon", "head", "run", "sampler", "steps"):
        assert f"right        {name}: " in said
    assert f"{'right' if named else 'not checked':<11}  data set: " in said
    honest = json.loads((out / "statement.json").read_text())
    ledger, account = honest["ledger"], honest["account"]

    def wrong(**changes) -> str:
        (out / "statement.json").write_text(json.dumps(honest | changes))
        code = main(verify)
        said = capsys.readouterr().out
        assert (code == 1) == ("WRONG" in said)
        return said.splitlines()[-1].partition("WRONG: ")[2]

    assert wrong(epsilon=0.001) == "epsilon"
    assert wrong(ledger=None) == "ledger"
    assert wrong(ledger=ledger | {"run": "000000000000"}) == "run"
    assert wrong(ledger=ledger | {"head": "4:" + "0" * 64}) == "head"
    assert wrong(ledger=ledger | {"dataset": "name:others"}) == "data set"
    noisier = account | {"noise_multiplier": 30.0}
    spent = float(Account.from_dict(noisier).epsilon(honest["delta"]))
    assert wrong(epsilon=spent, noise_multiplier=30.0, account=noisier) == "noise multiplier"
    assert wrong(epsilon=1.0, steps=honest["steps"] + 1, account=account | {"steps": honest["steps"] + 1}) == "steps"
    assert wrong(files=None) == "", "a statement of an earlier version"
    assert wrong(files=None, account=None) == ""
    assert wrong(files=None, account=None, epsilon=1.0, noise_multiplier=30.0) == "noise multiplier"
    assert wrong() == ""
    (out / "model.safetensors").write_bytes(b"another")
    (out / "config.yaml").unlink()
    assert wrong() == "model.safetensors, config.yaml"
    assert main(["ledger", "verify", "--run", str(tmp_path)]) == 2
    assert "statement.json" in capsys.readouterr().err


def test_a_statement_of_fewer_steps_than_were_reserved_is_wrong(ledger):
    run = ledger.open_run(ledger.dataset("patients"), Account(FullBatch(), 40.0), steps=48)
    for _ in range(2):
        ledger.reserve(run)
    assert [_check_steps(stated, ledger.run(run)).passed for stated in (33, 32, 17, 16)] == [False, True, True, False]


def test_a_run_that_stopped_inside_a_larger_block_is_right(tmp_path):
    ledger = Ledger(tmp_path / "large.sqlite", block=64)
    run = ledger.open_run(ledger.dataset("patients"), Account(FullBatch(), 40.0), steps=200)
    ledger.reserve(run)
    ledger.reserve(run)
    assert [_check_steps(stated, ledger.run(run)).passed for stated in (129, 128, 84, 64)] == [False, True, True, False]


def test_a_budget_for_data_that_no_run_has_read_is_refused_unless_it_is_meant(tmp_path, capsys, own_ledger):
    budget = ["ledger", "budget", "digits", "--epsilon", "0.001"]
    assert main(budget) == 2
    assert "--by-name" in capsys.readouterr().err
    assert not own_ledger.exists()
    Ledger(own_ledger).close()
    assert main(budget) == 2
    assert "none yet" in (said := capsys.readouterr().err)
    assert "--by-name enters a name for runs with --data-id" in said
    assert main([*budget, "--by-name"]) == 0
    assert "without it they are NOT" in capsys.readouterr().out
    short = ["train", "--epochs", "1", "--quiet", "--noise-multiplier", "20"]
    assert main([*short, "--data-id", "digits", "--out", str(tmp_path / "a")]) == 2
    assert "budget" in capsys.readouterr().err


def test_a_name_that_two_data_sets_have_is_asked_about(capsys, own_ledger):
    ledger = Ledger(own_ledger)
    mark = ledger.dataset(ledger.identify(data()), "digits")
    budget = ["ledger", "budget", "digits", "--epsilon", "3"]
    assert main(budget) == 0
    assert f"all runs on digits ({mark}) together" in capsys.readouterr().out
    assert main([*budget, "--by-name"]) == 2
    assert f"known by its records as {mark}" in capsys.readouterr().err
    ledger.dataset("digits")  # as a run with --data-id digits does
    for command in (budget, ["ledger", "show", "digits"]):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert f"{mark} (digits, known by its records)" in said
        assert "name:digits (digits, known by --data-id)" in said
    for one in (mark, "name:digits"):
        assert main(["ledger", "budget", one, "--epsilon", "2"]) == 0
        assert [budget.epsilon for budget in ledger.state().budgets_on(one, "one record")] == [2]
    ledger.close()


def test_data_sets_that_share_records_are_listed_as_one_under_all_their_names(capsys, own_ledger):
    (a, y), (b, z) = data(seed=1), data(seed=2)
    ledger = Ledger(own_ledger)
    for label, records in (("a", (a, y)), ("less", (a[1:], y[1:])), ("copy", (a.flip(0), y)), ("b", (b, z))):
        trainer(ledger, label=label, steps=1).fit(records)
    first, less, other = ledger.state().datasets
    assert main(["ledger", "budget", "nobody", "--epsilon", "3"]) == 2
    said = capsys.readouterr().err
    assert f"{first} (a, less, copy, known by its records), {other} (b, known by its records)" in said
    assert less not in said
    assert main(["ledger", "show"]) == 0
    shown = capsys.readouterr().out
    assert f"\na, less, copy  ({first}, {less}; unit: one record)\n" in shown
    assert "3 runs, 3 steps" in shown
    assert "1 run, 1 step\n" in shown
    assert ", 1 step; copy" in shown
    for name in ("a", "less", "copy", less):
        assert main(["ledger", "budget", name, "--epsilon", "3"]) == 0
    ledger.close()


def test_the_names_of_a_federation_s_clients_do_without_what_tells_its_runs_apart(ledger):
    for token in ("0123456789ab", "ba9876543210"):
        trainer(ledger, label=f"fedavg, north ({token})", steps=1).fit(data())
    (dataset,) = ledger.state().datasets
    assert ledger.state().labels(dataset) == ["fedavg, north"]


def test_a_file_that_is_no_ledger_is_not_only_called_damaged(tmp_path, capsys):
    (tmp_path / "p.csv").write_text("name,age\n" * 99)
    assert main([*SHORT, "--ledger", str(tmp_path / "p.csv"), "--out", str(tmp_path / "a")]) == 2
    assert "not a ledger, or damaged" in capsys.readouterr().err


def test_one_run_is_not_called_runs(tmp_path, capsys):
    assert main([*SHORT, "--out", str(tmp_path / "a")]) == 0
    assert ", 1 run\n" in capsys.readouterr().out


def test_studies_and_runs_without_a_ledger_write_none(tmp_path, own_ledger):
    short = ["train", "--epochs", "1", "--quiet", "--noise-multiplier", "20"]
    main([*short, "--insecure-noise-seed", "1", "--out", str(tmp_path / "a")])
    main([*short, "--ledger", "none", "--out", str(tmp_path / "b")])
    assert not own_ledger.exists()
    assert "in no ledger" in (tmp_path / "b" / "statement.txt").read_text()


def test_none_in_the_environment_is_no_ledger_and_a_relative_path_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    short = ["train", "--epochs", "1", "--quiet", "--noise-multiplier", "20"]
    monkeypatch.setenv("GNOMON_LEDGER", "none")
    assert main([*short, "--out", "a"]) == 0
    assert "in no ledger" in (tmp_path / "a" / "statement.txt").read_text()
    for more in ([], ["--ledger", "none"]):
        assert main(["ledger", "show", *more]) == 2
        assert main(["ledger", "budget", "digits", "--epsilon", "1", "--by-name", *more]) == 2
        assert "this command needs a ledger" in capsys.readouterr().err
    with pytest.raises(SettingError, match="GNOMON_LEDGER is 'none'"):
        required_path()
    monkeypatch.setenv("GNOMON_LEDGER", "ledger.sqlite")
    assert main([*short, "--out", "b"]) == 2
    assert "GNOMON_LEDGER = 'ledger.sqlite' is invalid; expected an absolute path" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"a"}


def test_a_missing_ledger_is_named(tmp_path, capsys):
    assert main(["ledger", "show", "--ledger", str(tmp_path / "nothing.sqlite")]) == 2
    assert "nothing.sqlite" in capsys.readouterr().err
    assert not (tmp_path / "nothing.sqlite").exists()


def test_threads_share_a_ledger(ledger):
    t = trainer(ledger)
    failed = []

    def work(fit) -> None:
        try:
            fit()
        except Exception as error:
            failed.append(error)

    others = [trainer(ledger, steps=5) for _ in range(3)]
    threads = [threading.Thread(target=work, args=(lambda one=one: one.fit(data()),)) for one in [t, *others]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    [dataset] = ledger.state().datasets
    assert ledger.total(dataset, DELTA).steps == 35
    assert ledger.verify() == ledger.head().number


def test_a_tilde_is_the_users_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "kept").mkdir()
    ledger = Ledger("~/kept/l.sqlite")
    ledger.close()
    assert ledger.path == required_path("~/kept/l.sqlite") == tmp_path / "kept" / "l.sqlite"
    assert ledger.path.exists()
