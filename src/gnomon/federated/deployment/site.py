"""A real federation's settings, and the folder in which a site keeps what must survive its processes."""

from __future__ import annotations

import fcntl
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gnomon.data import Records, Source, load
from gnomon.errors import SettingError
from gnomon.federated.client import Client
from gnomon.federated.message import Message
from gnomon.federated.refusal import Refused
from gnomon.federated.simulation.ledger_entries import LEDGER, by_rounds, token
from gnomon.federated.simulation.settings import declared, refuse_unused
from gnomon.federated.simulation.setup import build_client, member, participations
from gnomon.federated.simulation.strategy import PUBLIC, build_strategy
from gnomon.federated.state import PersistentState
from gnomon.files import write_atomic
from gnomon.ledger import Head, LedgerError, needed_path
from gnomon.ledger.identity import declared as declared_name
from gnomon.ledger.identity import is_name
from gnomon.ledger.ledger import unknown_before
from gnomon.runs.config import read_yaml
from gnomon.runs.federate_config import NOT_DEPLOYED, FederateConfig
from gnomon.runs.train import plain
from gnomon.text import counted
from gnomon.validate import whole

MEMORY, PUBLIC_FILE, LOCK = "persistent.safetensors", "public.safetensors", "lock"
UNPROTECTED = "unprotected.jsonl"
SITES = "a list of sites: 'name: number of records', or 'name: {records: N, node: ID}'"


@dataclass(frozen=True)
class Site:
    """A member by its declared, public number of records; `node` pins the identity that Flower gave its key."""

    records: int
    node: int | None = None


def read_federation(path: Path) -> tuple[FederateConfig, dict[str, Site]]:
    """The agreed settings of a federation: those of a run, and its sites. Server and sites hold the same file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     file = Path(place) / "federation.yaml"
    ...     _ = file.write_text("method: fedavg\\nnoise-multiplier: 2\\nsites: {north: 480, south: {records: 520}}")
    ...     read_federation(file)[1]["south"]
    Site(records=520, node=None)
    """
    values = read_yaml(path)
    listed = values.pop("sites", None)
    if not isinstance(listed, dict) or not listed:
        raise SettingError("sites", listed, SITES)
    sites = {}
    for name, about in listed.items():
        fields = about if isinstance(about, dict) else {"records": about}
        if set(fields) - {"records", "node"}:
            raise SettingError(f"sites.{name}", about, SITES)
        node = fields.get("node")
        if node is not None and not str(node).isdecimal():
            raise SettingError(f"sites.{name}.node", node, "the number that flwr supernode register printed")
        sites[str(name)] = Site(whole(f"sites.{name}", fields.get("records")), None if node is None else int(node))
    pinned = [site.node for site in sites.values() if site.node is not None]
    if twice := next((node for node in pinned if pinned.count(node) > 1), None):
        raise SettingError("node", twice, "a node of its own for each site: two sites have this one")
    if values.get("clients", len(sites)) != len(sites):
        raise SettingError("clients", values["clients"], f"none: there are {len(sites)} sites")
    config = FederateConfig.from_dict(values | {"clients": len(sites)})
    refuse_unused(config, NOT_DEPLOYED, "sites with records of their own have")
    if config.insecure_noise_seed is not None:
        raise SettingError("insecure-noise-seed", config.insecure_noise_seed, "nothing: a site's noise is never seeded")
    return config, sites


class SiteFolder:
    """What a site remembers between rounds, when every round may be a process of its own.

    What it has spent is in its ledger. The folder knows which run of the ledger is its own.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     label = SiteFolder(Path(place) / "state").label("fedavg, north")
    ...     label == SiteFolder(Path(place) / "state").label("fedavg, north")
    True
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One round at a time."""
        with (self.path / LOCK).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Refused("error", "another round is running") from None
            yield

    def label(self, text: str, federation: float | None = None) -> str:
        """What the ledger calls this site's run; on disk before the run is entered.

        A new folder takes the number by which a server knows its federation, so that a folder that was lost finds its
        run again. From then on the folder's word counts: a server cannot have another run entered.
        """
        if not (self.path / LEDGER).exists():
            known = federation is not None and federation.is_integer() and 0 <= federation < 2**48
            self._write({"token": f"{int(federation):012x}" if known and federation else token(), "head": None})
        return f"{text} ({self._kept()['token']})"

    def take_up(self, client: Client, answered: int) -> None:
        """Go on with the run that an earlier round entered: what it has paid for counts as taken.

        A ledger that does not know what this folder has seen in it is refused: it was lost, cut or replaced. A run
        that was entered for another number of rounds goes on with this one.

        If the server says that it has had answers which this run has not paid for, the round is refused: folder and
        ledger may both come from a backup. Nothing is paid on the server's word, or one wrong number would use up the
        budget: whoever runs the site pays with `gnomon ledger pay`.
        """
        session, head = client.ledger_session, self._kept()["head"]
        if session.ledger is None:
            return
        found = session.ledger.labelled(session.label)
        if head is None:  # a new folder: what it finds under this label may be of other settings or records
            found = [run for run in found if session.suits(run, client.data)]
        else:
            session.ledger.verify(Head.read(head))
            if not found:
                raise LedgerError(
                    f"{session.ledger.path} has no run {session.label}: give the ledger that {self.path} began with, "
                    "or a new folder if the agreed file has changed"
                )
        if found and not is_name(found[-1].dataset):
            raise LedgerError(
                f"run {found[-1].id} of {session.ledger.path} was entered for records that were recognised by "
                f"content, which a site no longer does: begin with a new --state folder in place of {self.path}. The "
                "run stays in the ledger; what it has spent does not count for the name, so give that a budget which "
                "is smaller by as much"
            )
        if found:
            spent = session.resume(found[-1].id, client.data, redeclare=True)
            if spent:
                client.trainer.account.charge(spent if client.each_round is None else spent * client.steps)
        if (lost := answered - client.trainer.account.steps // client.steps) > 0:
            self._refuse_unpaid(client, lost)

    def _refuse_unpaid(self, client: Client, lost: int) -> None:
        """An error that says how to pay for answers that the server has had and the ledger has not."""
        session = client.ledger_session
        assert session.ledger is not None
        session.admit(client.data)
        session.start()  # the run that is to pay; it costs nothing
        steps = lost if client.each_round is not None else lost * client.steps
        raise LedgerError(
            f"the server says that it has had {counted(lost, 'answer')} of this site that {session.ledger.path} has "
            f"not paid for. No round is answered, and nothing was paid. If {self.path} and the ledger come from a "
            f"backup, pay for what they forgot: gnomon ledger pay {session.run} --steps {steps} --ledger "
            f"{session.ledger.path}. If they do not, the server is wrong, or another node has answered in the name "
            "of this site: talk to whoever runs it"
        )

    def remember(self, client: Client) -> None:
        """Keep what must outlive the round, and how far the ledger reached."""
        write_atomic(self.path / MEMORY, client.persistent.to_bytes())
        self._write(self._kept() | {"head": str(client.ledger_session.head())})

    def note(self, number: int, client: Client) -> None:
        """Diagnostics of a round's steps, for the site's own eyes."""
        with (self.path / UNPROTECTED).open("a") as file:
            for step in client.unprotected:
                about = {"round": number, **plain(step), "unprotected/left out": client.trainer.admission.left_out}
                file.write(json.dumps(about) + "\n")

    def _kept(self) -> dict[str, Any]:
        return dict(json.loads((self.path / LEDGER).read_text()))

    def _write(self, values: dict[str, Any]) -> None:
        write_atomic(self.path / LEDGER, json.dumps(values).encode())

    def persistent(self) -> PersistentState:
        path = self.path / MEMORY
        return PersistentState.from_bytes(path.read_bytes()) if path.exists() else PersistentState()

    def public(self, message: Message) -> Records:
        """The public records: from the message, or kept from an earlier one."""
        path = self.path / PUBLIC_FILE
        if "public" in message.arrays:
            write_atomic(path, PersistentState({"public": message.arrays["public"]}).to_bytes())
        elif not path.exists():
            raise Refused("contents", "no public records")
        arrays = PersistentState.from_bytes(path.read_bytes()).arrays["public"]
        return Records(arrays["inputs"], arrays["targets"])


def answer(
    config: FederateConfig,
    sites: dict[str, Site],
    name: str,
    data: str,
    state: Path,
    message: Message,
    *,
    ledger: Path | None = None,
    dataset: str | None = None,
) -> Message:
    """A site's part in one round, from its own records, its own copy of the settings and its folder.

    The server's message holds weights and public things; it cannot change noise, bound, sampling or number of steps.
    The round is paid for in the site's `ledger` (default: GNOMON_LEDGER, or a file of the user) before anything leaves
    the site, together with all other runs on the `dataset` of that name.

    The name is needed. The server sees whether the site answers, and a budget of records that are recognised by
    content would let a single record decide that.
    """
    named = site_dataset(dataset)
    if message.round > whole("rounds", config.rounds):
        raise Refused("budget", f"round {message.round} of {config.rounds}")  # or no earlier round could follow it
    folder = SiteFolder(state)
    with folder.alone():
        source = _records(config, sites, name, data)
        public = folder.public(message) if config.method in PUBLIC else source.train[:0]
        strategy = build_strategy(config, public)
        rounds = participations(config, sites)[name]
        about = member(config, strategy, sites[name].records, rounds)
        book = by_rounds(config, needed_path(ledger))
        if not book.head().number:
            print(unknown_before(str(book.path)), file=sys.stderr)
        try:
            client = build_client(
                config, name, source.train, about, strategy, source,
                rounds=max(1, rounds), persistent=folder.persistent(), ledger=book, dataset=named,
                label=folder.label(f"{config.method}, {name}", message.numbers.get("federation")), stranger=True,
            )  # fmt: skip
            folder.take_up(client, int(min(message.numbers.get("answered", 0.0), rounds)))
            reply = client.train(message)
            folder.remember(client)
            folder.note(message.round, client)
            write_atomic(state / "statement.txt", client.statement().text().encode())
        finally:
            book.shut()
        return reply


def site_dataset(name: str | None) -> str:
    """The id of a site's data set: its declared name, and never what the records contain.

    >>> site_dataset("patients")
    'name:patients'
    >>> site_dataset(None)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    gnomon.errors.SettingError: data-id = None is invalid; expected a name for the site's records, as in --data-id ...
    """
    if name is None or not name.strip():
        raise SettingError(
            "data-id",
            name,
            "a name for the site's records, as in --data-id patients: the same one in all work with them. Recognised "
            "by content, a single record could decide whether the server is told that a budget is spent",
        )
    return declared_name(name).mark


def check_site(federation: Path, name: str, data: str, dataset: str | None) -> None:
    """Refuses what would make every round of a site fail, before there is one. The errors are for the site's eyes."""
    site_dataset(dataset)
    config, sites = read_federation(federation)
    _records(config, sites, name, data)


def _records(config: FederateConfig, sites: dict[str, Site], name: str, data: str) -> Source:
    """A site's records, as the settings declare them."""
    if name not in sites:
        raise SettingError("name", name, f"one of the sites {', '.join(sites)}")
    source = declared(config, load(data))
    if source.counted:
        allowed = "the number of classes in the agreed file, or in an array `classes` of the data: a site's own labels"
        raise SettingError("classes", None, f"{allowed} must not decide it")
    return source


def torch_threads(count: int | None) -> None:
    """As many threads as the settings say."""
    if count is not None:
        torch.set_num_threads(whole("threads", count))
