"""A federated run from its config, the folder it leaves behind, and how it goes on after a kill."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as safetensors_bytes
from tqdm.auto import tqdm

from gnomon.accounting import digits
from gnomon.federated.deployment.answers import ANSWERED
from gnomon.federated.message import Arrays, array_bytes
from gnomon.federated.rounds import Exchange, InProcess, RoundFailed, rounds
from gnomon.federated.server import RoundResult, Server
from gnomon.federated.simulation.ledger_entries import LEDGER, Entries
from gnomon.federated.simulation.saved import ASKED, METRICS, RECORDS, STATE, KeptFolder, marks, state_of, terms
from gnomon.federated.simulation.setup import Federation, build
from gnomon.federated.simulation.statement import federated_statement
from gnomon.ledger import Ledger, Total
from gnomon.ledger.ledger import unknown_before
from gnomon.runs.builders import CLASSES_COUNTED, is_own
from gnomon.runs.config import read_yaml
from gnomon.runs.federate_config import FederateConfig
from gnomon.runs.folder import RunFolder
from gnomon.runs.train import plain
from gnomon.statement.consistency import file_hashes
from gnomon.statement.statement import ledger_note
from gnomon.training import Statement
from gnomon.training.interrupt import StopRequest
from gnomon.training.metrics import Metrics
from gnomon.validate import whole

REFUSED = "refused.jsonl"
FILES = (STATE, ASKED, ANSWERED, RECORDS, REFUSED, LEDGER, "bytes.md")
COUNTED = "The clients' parts and sizes come from the records themselves, and the epsilon takes both as public."
ELSEWHERE = "What other runs on a site's records have cost is known to the site alone: see its statement and ledger."


@dataclass
class FederatedRun:
    """What a run gave, and where its files are."""

    history: list[Metrics]
    statement: Statement
    federation: Federation
    folder: Path
    stopped: str
    """"finished", "interrupted", or "budget" if nobody could pay for a further round before the last one."""
    total: Total | None = None
    """What all runs on a client's records have cost together, of the client that paid the most. For the data holder."""


def federate(
    config: FederateConfig,
    out: Path,
    *,
    overwrite: bool = False,
    progress: bool = True,
    ledger: Ledger | None = None,
    dataset: str | None = None,
) -> FederatedRun:
    """Run all rounds in this process; leave config, metrics, model, statement, traffic and picture in `out`.

    With a ledger each client's rounds are counted there, together with all other runs on its records. With a `dataset`
    all clients count for the data set of that name together: more than any record has paid, never less.

    >>> import tempfile
    >>> config = FederateConfig(method="fedavg", rounds=1, noise_multiplier=2.0)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     run = federate(config, Path(place) / "run", progress=False)
    ...     (run.folder / "bytes.md").read_text().splitlines()[0]
    '| a client and round | down, bytes | up, bytes |'
    """
    if config.threads is not None:
        torch.set_num_threads(whole("threads", config.threads))
    entries = Entries.new(config, ledger, dataset)
    federation = build(config, ledger=entries.ledger, label=entries.label, dataset=entries.dataset)
    for client in federation.clients.values():
        client.trainer.check(client.data)  # before anything of an earlier run is touched
        client.ledger_session.admit(client.data)
    folder = RunFolder(out, overwrite)
    for name in FILES:
        (out / name).unlink(missing_ok=True)
    folder.write("config.yaml", config.to_yaml().encode())
    folder.write(RECORDS, json.dumps(marks(federation)).encode())
    entries.remember(folder)
    return go(config, federation, folder, [], progress, entries=entries)


def resume(out: Path, *, progress: bool = True, ledger: Ledger | None = None) -> FederatedRun:
    """Go on after the last round that ended. A round that was cut short was paid for, and stays paid for.

    The ledger is the one that the run began with, unless another place is named.
    """
    config = FederateConfig.from_dict(read_yaml(out / "config.yaml"))
    folder = KeptFolder(out)
    entries = Entries.of(config, folder, ledger)
    left = folder.left(config)
    federation = build(config, left=left, ledger=entries.ledger, label=entries.label, dataset=entries.dataset)
    for client in federation.clients.values():
        client.ledger_session.recognise(
            client.data
        )  # also of clients that take no further step the statement has the total
    return go(config, federation, folder, folder.restore(config, federation), progress, entries=entries)


def go(
    config: FederateConfig,
    federation: Federation,
    folder: RunFolder,
    history: list[Metrics],
    progress: bool,
    exchange: Exchange | None = None,
    entries: Entries | None = None,
) -> FederatedRun:
    """Run what is left, keeping everything on disk after each round; by default with the clients in this process."""
    server = federation.server

    def asked(number: int, names: Sequence[str]) -> None:
        """On disk before any client draws noise: a crash may count a round too many, never one too few."""
        _add(folder, ASKED, {"round": number, "clients": terms(server, names)})

    def ended(how: RoundResult) -> None:
        """Who was refused, and why, by name."""
        for name, why in how.refused.items():
            folder.append(REFUSED, json.dumps({"round": how.round, "client": name, "why": why}))

    stopped, failed, reached = "finished", None, _weights(server)
    with (
        StopRequest() as stop,
        tqdm(total=server.rounds, initial=server.round, unit="round", disable=not progress, desc=config.method,
             dynamic_ncols=True) as bar,
    ):  # fmt: skip
        try:
            for record in rounds(
                server,
                exchange or InProcess(federation.clients),
                validation=federation.source.test,
                heldout=federation.heldout,
                delta=config.target_delta,
                on_begin=asked,
                on_end=ended,
            ):
                history.append(record)
                reached = _weights(server)
                _add(folder, METRICS, plain(record))  # before the state: a line too many is dropped, a gap would stay
                folder.write(STATE, state_of(federation).to_bytes())
                if entries is not None:
                    entries.remember(folder)
                bar.update()
                bar.set_postfix(accuracy=f"{record['validation/accuracy']:.3f}", epsilon=digits(record["epsilon"]))
                if stop.requested:
                    stopped = "interrupted"
                    break
        except RoundFailed as error:  # what was reached before is kept, without what a failed round moved
            server.model.load_state_dict(reached)
            if error.spent and history:
                stopped = "budget"
            else:
                failed = error
    for client in federation.clients.values():
        client.ledger_session.stop()
    if failed is not None and not history:
        raise failed
    statement = _write(config, federation, folder, history, entries)
    if failed is not None:
        raise failed
    return FederatedRun(history, statement, federation, folder.path, stopped, _worst_total(config, federation))


def _add(folder: RunFolder, name: str, values: Mapping[str, Any]) -> None:
    """Add a line to a file; on disk when this returns."""
    with (folder.path / name).open("a") as file:
        file.write(json.dumps(values) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _write(
    config: FederateConfig,
    federation: Federation,
    folder: RunFolder,
    history: list[Metrics],
    entries: Entries | None = None,
) -> Statement:
    server = federation.server
    folder.write("model.safetensors", safetensors_bytes(_weights(server), {"format": "pt"}))
    private = config.insecure_noise_seed is None
    notes = [] if federation.clients else [ELSEWHERE]
    if federation.clients and is_own(config.data):
        notes.append(COUNTED)
    if federation.clients and federation.source.counted:
        notes.append(CLASSES_COUNTED)
    if entries is not None and entries.ledger is not None and entries.began_ledger():
        notes.append(f"{unknown_before(entries.ledger.path.name)}.")
    ledger = _ledger_note(config, federation)
    statement = federated_statement(config, server, private, federation.public, ledger, notes)
    statement = dataclasses.replace(statement, files=file_hashes(folder.path))
    folder.write("statement.txt", statement.text().encode())
    folder.write("statement.json", statement.json().encode())
    folder.write("bytes.md", traffic(federation, history).encode())
    from gnomon.figures.curve import training_curve  # noqa: PLC0415  # loads matplotlib

    training_curve(history, f"{config.method} on {config.data}", folder.path / "curve.png", "round")
    return statement


def _weights(server: Server) -> Arrays:
    """A copy of the global model."""
    return {name: value.detach().cpu().contiguous().clone() for name, value in server.model.state_dict().items()}


def _worst_total(config: FederateConfig, federation: Federation) -> Total | None:
    """What all runs on a client's records have cost together: that of the client whose records paid the most."""
    totals = [client.ledger_session.total(config.target_delta) for client in federation.clients.values()]
    return max((total for total in totals if total is not None), key=lambda total: total.counted, default=None)


def _ledger_note(config: FederateConfig, federation: Federation) -> dict[str, Any] | None:
    """What the statement says about the ledger: of the first client that is entered there, or else recognised.

    Not of the one that paid the most: where parts are recognised by content, a record could decide which one that is.
    Under a declared name all of them have the same total.
    """
    known = [client.ledger_session for client in federation.clients.values() if client.ledger_session.recognised]
    ledger_session = next((one for one in known if one.run), next(iter(known), None))
    return None if ledger_session is None else ledger_note(ledger_session, config.target_delta)


def traffic(federation: Federation, history: Sequence[Metrics]) -> str:
    """A table of what one client sends and gets in a round, beside FedAvg's."""
    server = federation.server
    asked = [row.get("asked", row["accepted"] + row["refused"]) for row in history]
    whole_model = array_bytes(server.weights)
    later = slice(1, None) if len(history) > 1 else slice(None)
    down = sum(row["bytes/down"] for row in history[later]) / max(1, sum(asked[later]))
    up = sum(row["bytes/up"] for row in history) / max(1, sum(row["accepted"] for row in history))
    first = history[0]["bytes/down"] / max(1, asked[0]) if history else 0
    lines = [
        "| a client and round | down, bytes | up, bytes |",
        "|---|---|---|",
        f"| {server.strategy.name} | {down:,.0f} | {up:,.0f} |",
        f"| {server.strategy.name}, first round | {first:,.0f} | {up:,.0f} |",
        f"| the whole model both ways (fedavg) | {whole_model:,} | {whole_model:,} |",
        "",
        f"All rounds and clients: {sum(row['bytes/down'] for row in history):,} bytes down, "
        f"{sum(row['bytes/up'] for row in history):,} up. Payload without the protocol's own bytes.",
    ]
    return "\n".join(lines) + "\n"
