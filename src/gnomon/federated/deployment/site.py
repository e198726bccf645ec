"""A site of a real federation: the agreed settings, the folder that survives its processes, and its rounds."""

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
from gnomon.errors import DataError, SettingError
from gnomon.federated.builders import (
    NEEDS_PUBLIC,
    build_client,
    build_strategy,
    client_profile,
    refuse_simulation_settings,
    rounds_per_client,
    with_declared_classes,
)
from gnomon.federated.client import Client
from gnomon.federated.message import Message
from gnomon.federated.refusal import Refused
from gnomon.federated.simulation.ledger_entries import LEDGER, new_token, round_ledger
from gnomon.federated.state import ClientState, load_tree, save_tree
from gnomon.files import write_atomic
from gnomon.ledger import Head, LedgerError, required_path
from gnomon.ledger.identity import identity_of_name, is_declared_name
from gnomon.ledger.ledger import new_ledger_notice
from gnomon.runs.config import read_yaml
from gnomon.runs.federate_config import FederateConfig
from gnomon.runs.train import plain
from gnomon.text import counted
from gnomon.validate import whole

CLIENT_STATE, PUBLIC_RECORDS, LOCK = "state.safetensors", "public.safetensors", "lock"
FORMER_STATE = "memory.safetensors"
UPLOADS_RECEIVED = "uploads_received"
UNPROTECTED = "unprotected.jsonl"
SITES = "a list of sites, as 'name: number of records' or 'name: {records: N, node: ID}'"


@dataclass(frozen=True)
class Site:
    """A site of the agreed file."""

    records: int
    """The declared, public number of records."""
    node: int | None = None
    """The identifier that Flower gave the site's key; None if any node may give the site's name."""


def read_federation(path: Path) -> tuple[FederateConfig, dict[str, Site]]:
    """Read the agreed settings of a federation and its sites. The server and all sites hold the same file.

    Raises:
        SettingError: the file or one of its settings is invalid.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "federation.yaml"
    ...     _ = file.write_text("method: fedavg\\nnoise-multiplier: 2\\nsites: {north: 480, south: {records: 520}}")
    ...     read_federation(file)[1]["south"]
    Site(records=520, node=None)
    """
    values = read_yaml(path)
    listed = values.pop("sites", None)
    if not isinstance(listed, dict) or not listed:
        raise SettingError("sites", listed, SITES)
    sites = {str(name): _site(str(name), about) for name, about in listed.items()}
    pinned = [site.node for site in sites.values() if site.node is not None]
    if shared := next((node for node in pinned if pinned.count(node) > 1), None):
        raise SettingError("node", shared, "a different node for each site, and two sites have this one")
    if values.get("clients", len(sites)) != len(sites):
        raise SettingError("clients", values["clients"], f"no value, or {len(sites)}, the number of sites")
    config = FederateConfig.from_dict(values | {"clients": len(sites)})
    refuse_simulation_settings(config)
    if config.insecure_noise_seed is not None:
        raise SettingError(
            "insecure-noise-seed", config.insecure_noise_seed, "no value: a site's noise is never seeded"
        )
    return config, sites


def _site(name: str, about: Any) -> Site:
    """Return a site from its entry in the agreed file."""
    fields = about if isinstance(about, dict) else {"records": about}
    if set(fields) - {"records", "node"}:
        raise SettingError(f"sites.{name}", about, SITES)
    node = fields.get("node")
    if node is not None and not str(node).isdecimal():
        raise SettingError(f"sites.{name}.node", node, "the number that `flwr supernode register` printed")
    return Site(whole(f"sites.{name}", fields.get("records")), None if node is None else int(node))


class SiteFolder:
    """The state folder of a site, which survives its processes: every round may be a process of its own.

    What the site has spent is in its ledger. The folder knows which run of the ledger is its own.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     label = SiteFolder(Path(folder) / "state").run_label("fedavg, north")
    ...     label == SiteFolder(Path(folder) / "state").run_label("fedavg, north")
    True
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for one round.

        Raises:
            Refused: another round is running in it.
        """
        with (self.path / LOCK).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Refused("error", "another round is running in this state folder") from None
            yield

    def run_label(self, text: str, federation: float | None = None) -> str:
        """Return the label of this site's run in the ledger. It is on disk before the run is entered.

        A new folder derives it from the server's identifier of the federation, so that a site that lost its folder
        finds its run again. From then on the folder decides: a server cannot make the site enter another run.

        Args:
            text: the part of the label that people read.
            federation: the server's identifier of the federation; ignored if it is not a 48-bit integer.
        """
        if not (self.path / LEDGER).exists():
            valid = federation is not None and federation.is_integer() and 0 <= federation < 2**48
            token = f"{int(federation):012x}" if valid and federation else new_token()
            self._write_ledger_file({"token": token, "head": None})
        return f"{text} ({self._read_ledger_file()['token']})"

    def resume_ledger_run(self, client: Client, uploads_received: int) -> None:
        """Resume the ledger's run of earlier rounds, whose steps count as taken.

        A run that was entered for another number of rounds is declared anew for the present number.

        Args:
            client: the site's client.
            uploads_received: the number of uploads that the server says it has received from this site. If the run has
                not paid for all of them, folder and ledger may both come from a backup, and the round is refused.
                Nothing is paid on the server's word, or one wrong number would exhaust the budget: the site's operator
                pays with `gnomon ledger pay`.

        Raises:
            LedgerError: the ledger lacks entries that this folder has seen in it, or has not paid for all uploads.
        """
        session, head = client.ledger_session, self._read_ledger_file()["head"]
        if session.ledger is None:
            return
        runs = session.ledger.runs_with_label(session.label)
        if head is None:  # in a new folder, a run of this label may have other settings or records
            runs = [run for run in runs if session.can_resume(run, client.data)]
        else:
            session.ledger.verify(Head.parse(head))
            if not runs:
                raise LedgerError(
                    f"{session.ledger.path} has no run {session.label}: use the ledger with which {self.path} began, "
                    "or a new --state folder if the agreed file has changed"
                )
        if runs and not is_declared_name(runs[-1].dataset):
            raise LedgerError(
                f"run {runs[-1].id} of {session.ledger.path} was entered for records that are recognised by content, "
                f"which sites do not support: begin with a new --state folder in place of {self.path}. The run stays "
                "in the ledger, but its cost does not count for the declared name: reduce the budget of that name by it"
            )
        if runs:
            spent = session.resume(runs[-1].id, client.data, redeclare=True)
            if spent:
                per_round = client.round_ledger_session is not None
                client.trainer.account.charge(spent * client.steps if per_round else spent)
        if (unpaid := uploads_received - client.trainer.account.steps // client.steps) > 0:
            self._refuse_unpaid(client, unpaid)

    def _refuse_unpaid(self, client: Client, unpaid: int) -> None:
        """Raise an error that says how to pay for uploads that the server received and the ledger does not know."""
        session = client.ledger_session
        assert session.ledger is not None
        session.admit(client.data)
        session.start()  # enters the run that is to pay, which costs nothing
        steps = unpaid if client.round_ledger_session is not None else unpaid * client.steps
        raise LedgerError(
            f"the server says that it has received {counted(unpaid, 'upload')} of this site for which "
            f"{session.ledger.path} has not paid. The round is refused, and nothing was paid. If {self.path} and the "
            f"ledger come from a backup, pay for the missing uploads: gnomon ledger pay {session.run} --steps {steps} "
            f"--ledger {session.ledger.path}. If they do not, the server is wrong, or another node has replied in the "
            "name of this site: ask the operator of the server"
        )

    def save(self, client: Client) -> None:
        """Write the client's state and the ledger's head."""
        write_atomic(self.path / CLIENT_STATE, save_tree(client.state.to_tree()))
        self._write_ledger_file(self._read_ledger_file() | {"head": str(client.ledger_session.head())})

    def log_diagnostics(self, number: int, client: Client) -> None:
        """Append the diagnostics of a round's steps, for the site only."""
        with (self.path / UNPROTECTED).open("a") as file:
            for step in client.unprotected:
                row = {"round": number, **plain(step), "unprotected/left out": client.trainer.admission.left_out}
                file.write(json.dumps(row) + "\n")

    def _read_ledger_file(self) -> dict[str, Any]:
        return dict(json.loads((self.path / LEDGER).read_text()))

    def _write_ledger_file(self, values: dict[str, Any]) -> None:
        write_atomic(self.path / LEDGER, json.dumps(values).encode())

    def client_state(self) -> ClientState:
        """Return the client's state of earlier rounds."""
        path = self.path / CLIENT_STATE
        if (self.path / FORMER_STATE).exists() and not path.exists():
            remedy = "finish that federation with the version that began it, or begin with a new --state folder"
            raise DataError(self.path / FORMER_STATE, "is the state of an earlier version", remedy)
        return ClientState.from_tree(load_tree(path.read_bytes())) if path.exists() else ClientState()

    def public_records(self, message: Message) -> Records:
        """Return the public records of a message, or those of an earlier one.

        Raises:
            Refused: no message had any.
        """
        path = self.path / PUBLIC_RECORDS
        if "public" in message.arrays:
            write_atomic(path, save_tree(message.arrays["public"]))
        elif not path.exists():
            raise Refused("contents", "no public records")
        arrays = load_tree(path.read_bytes())
        return Records(arrays["inputs"], arrays["targets"])


def run_site_round(
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
    """Take part in one round with the site's own records, settings and folder, and return the upload.

    Guarantees: the server's message holds weights and public values, and cannot change noise, clip bound, sampling or
    number of steps. The ledger has the round, together with all other runs on the data set, before anything leaves
    the site.

    Args:
        config: the site's copy of the agreed settings.
        sites: the sites of the federation.
        name: the name of this site.
        data: the site's records, as `npz:FILE`.
        state: the site's state folder.
        message: the server's message.
        ledger: the site's ledger (default: `GNOMON_LEDGER`, or the user's own file).
        dataset: the declared name of the site's records in the ledger. It is required: the server sees whether the
            site replies, and with a budget for records that are recognised by content, one record could decide that.

    Raises:
        Refused: the message is not acceptable, or a budget is exhausted.
        SettingError: a setting of the site is invalid.
        LedgerError: the ledger does not fit the state folder or the server's number of uploads.
    """
    dataset_id = site_dataset(dataset)
    if message.round > whole("rounds", config.rounds):
        # accepted, it would make the client refuse all earlier rounds from then on
        raise Refused("budget", f"round {message.round} of {config.rounds}")
    folder = SiteFolder(state)
    with folder.lock():
        source = _load_records(config, sites, name, data)
        public = folder.public_records(message) if config.method in NEEDS_PUBLIC else source.train[:0]
        strategy = build_strategy(config, public)
        rounds = rounds_per_client(config, sites)[name]
        profile = client_profile(config, strategy, sites[name].records, rounds)
        if UPLOADS_RECEIVED not in message.numbers:  # without it, a restored backup would go unnoticed
            raise Refused("contents")
        site_ledger = round_ledger(config, required_path(ledger))
        if not site_ledger.head().number:
            print(new_ledger_notice(str(site_ledger.path)), file=sys.stderr)
        try:
            client = build_client(
                config, name, source.train, profile, strategy, source,
                rounds=max(1, rounds), state=folder.client_state(), ledger=site_ledger, dataset=dataset_id,
                label=folder.run_label(f"{config.method}, {name}", message.numbers.get("federation")),
                untrusted_server=True,
            )  # fmt: skip
            folder.resume_ledger_run(client, int(min(message.numbers[UPLOADS_RECEIVED], rounds)))
            reply = client.train(message)
            folder.save(client)
            folder.log_diagnostics(message.round, client)
            write_atomic(state / "statement.txt", client.statement().text().encode())
        finally:
            site_ledger.close()
        return reply


def site_dataset(name: str | None) -> str:
    """Return the identifier of a site's data set, which is its declared name and never a hash of its records.

    Raises:
        SettingError: there is no name.

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
            "a name for the site's records, as in --data-id patients, the same in all work with them. If records were "
            "recognised by content, a single record could decide whether the server learns that a budget is exhausted",
        )
    return identity_of_name(name).id


def check_site(federation: Path, name: str, data: str, dataset: str | None) -> None:
    """Check a site's settings before its first round. The errors are shown at the site only.

    Raises:
        SettingError: a setting would make every round fail.
    """
    site_dataset(dataset)
    config, sites = read_federation(federation)
    _load_records(config, sites, name, data)


def _load_records(config: FederateConfig, sites: dict[str, Site], name: str, data: str) -> Source:
    """Load a site's records, with the declared number of classes."""
    if name not in sites:
        raise SettingError("name", name, f"one of the sites {', '.join(sites)}")
    source = with_declared_classes(config, load(data))
    if source.counted:
        raise SettingError(
            "classes",
            None,
            "the number of classes, in the agreed file or in an array `classes` of the data: a site's own labels must "
            "not decide it",
        )
    return source


def set_threads(count: int | None) -> None:
    """Set the number of CPU threads, if the settings have one."""
    if count is not None:
        torch.set_num_threads(whole("threads", count))
