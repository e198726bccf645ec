"""Run a federation from its settings, write its run folder, and resume it after an interruption."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as safetensors_bytes
from tqdm.auto import tqdm

from gnomon.accounting import digits
from gnomon.federated.builders import Federation, build_federation, prepare_federation
from gnomon.federated.message import Arrays, array_bytes
from gnomon.federated.rounds import Exchange, InProcess, RoundFailed, run_rounds
from gnomon.federated.server import RoundResult, Server
from gnomon.federated.simulation.ledger_entries import LEDGER, LedgerEntries
from gnomon.federated.simulation.saved import (
    ANSWERED,
    ASKED,
    METRICS,
    RECORDS,
    STATE,
    SavedRunFolder,
    client_record_hashes,
    round_costs,
    serialise_state,
)
from gnomon.federated.simulation.statement import federated_statement
from gnomon.ledger import Ledger, Total
from gnomon.ledger.ledger import new_ledger_notice
from gnomon.recipes import FederatedPlan
from gnomon.runs.builders import CLASSES_COUNTED, WARM_START, is_own, public_origin
from gnomon.runs.config import read_yaml
from gnomon.runs.federate_config import FederateConfig
from gnomon.runs.folder import RunFolder
from gnomon.runs.train import plain
from gnomon.statement.consistency import file_hashes
from gnomon.statement.statement import ledger_note
from gnomon.training import Statement, evaluate
from gnomon.training.interrupt import StopRequest
from gnomon.training.metrics import Metrics
from gnomon.validate import whole

REFUSED = "refused.jsonl"
PUBLIC_ONLY = "public-only.json"
"""Scores of the model from which a run with a public start began, which cost no privacy."""
FILES = (STATE, ASKED, ANSWERED, RECORDS, REFUSED, PUBLIC_ONLY, LEDGER, "bytes.md")
SIZES_FROM_RECORDS = (
    "The clients' parts and sizes come from the records themselves, and the epsilon takes both as public."
)
SITES_KEEP_TOTALS = (
    "Only a site knows what other runs on its records have cost: see the site's own statement and ledger."
)


@dataclass
class FederatedRun:
    """The result of a run."""

    history: list[Metrics]
    statement: Statement
    federation: Federation
    folder: Path
    stopped: str
    """`finished`, `interrupted`, or `budget` if no client could pay for a further round before the last one."""
    total: Total | None = None
    """The ledger's total for the client that paid the most, over all runs on its records. For the data holder only."""


def federate(
    config: FederateConfig,
    out: Path,
    *,
    overwrite: bool = False,
    progress: bool = True,
    ledger: Ledger | None = None,
    dataset: str | None = None,
    on_plan: Callable[[FederatedPlan], None] | None = None,
) -> FederatedRun:
    """Run all rounds in this process, and write config, metrics, model, statement, traffic and a figure to `out`.

    Args:
        config: the settings.
        out: the run folder.
        overwrite: replace a run that is in the folder.
        progress: show a progress bar.
        ledger: the ledger that counts each client's rounds, together with all other runs on its records.
        dataset: the declared name of the data set in the ledger. All clients are then counted for it together, which
            is at least what any record has paid.
        on_plan: called with the settings that a recipe chose.

    >>> import tempfile
    >>> config = FederateConfig(method="fedavg", rounds=1, noise_multiplier=2.0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = federate(config, Path(folder) / "run", progress=False)
    ...     (run.folder / "bytes.md").read_text().splitlines()[0]
    '| a client and round | down, bytes | up, bytes |'
    """
    if config.threads is not None:
        torch.set_num_threads(whole("threads", config.threads))
    prepared = prepare_federation(config, progress=progress)
    if prepared.plan is not None and on_plan is not None:
        on_plan(prepared.plan)
    config = prepared.config
    entries = LedgerEntries.new(config, ledger, dataset)
    federation = build_federation(
        config, ledger=entries.ledger, label=entries.label, dataset=entries.dataset, prepared=prepared
    )
    for client in federation.clients.values():
        client.trainer.check(client.data)  # before any file of an earlier run is touched
        client.ledger_session.admit(client.data)
    folder = RunFolder(out, overwrite)
    for name in FILES:
        (out / name).unlink(missing_ok=True)
    folder.write("config.yaml", config.to_yaml().encode())
    folder.write(RECORDS, json.dumps(client_record_hashes(federation)).encode())
    if config.warm_start == "public":
        server = federation.server
        scores = evaluate(server.model, server.loss, federation.source.test)
        scores = {"public records": federation.public, **plain(scores)}
        folder.write(PUBLIC_ONLY, json.dumps(scores, indent=2).encode())
    entries.save(folder)
    return run_remaining_rounds(config, federation, folder, [], progress, entries=entries)


def resume(out: Path, *, progress: bool = True, ledger: Ledger | None = None) -> FederatedRun:
    """Resume a run after its last round that ended. A round that was interrupted has been paid for, and stays paid.

    Args:
        out: the run folder.
        progress: show a progress bar.
        ledger: the run's ledger, if it moved.
    """
    config = FederateConfig.from_dict(read_yaml(out / "config.yaml"))
    folder = SavedRunFolder(out)
    entries = LedgerEntries.of_saved_run(config, folder, ledger)
    federation = build_federation(
        config,
        remaining_rounds=folder.remaining_rounds(config),
        ledger=entries.ledger,
        label=entries.label,
        dataset=entries.dataset,
    )
    for client in federation.clients.values():
        # the statement has the totals of all clients, also of those that take no further step
        client.ledger_session.identify(client.data)
    history = folder.restore(config, federation)
    return run_remaining_rounds(config, federation, folder, history, progress, entries=entries)


def run_remaining_rounds(
    config: FederateConfig,
    federation: Federation,
    folder: RunFolder,
    history: list[Metrics],
    progress: bool,
    exchange: Exchange | None = None,
    entries: LedgerEntries | None = None,
) -> FederatedRun:
    """Run the remaining rounds, and save everything after each.

    Args:
        config: the settings.
        federation: the federation.
        folder: the run folder.
        history: the metrics of earlier rounds.
        progress: show a progress bar.
        exchange: delivers the messages (default: to the clients in this process).
        entries: the run's entries in the ledger.

    Raises:
        RoundFailed: no upload was accepted in a round. The results of the rounds before it have been written.
    """
    server = federation.server

    def record_asked(number: int, names: Sequence[str]) -> None:
        # on disk before any client draws noise: after a crash a round may be counted too much, never too little
        _append_durably(folder, ASKED, {"round": number, "clients": round_costs(server, names)})

    def record_refused(result: RoundResult) -> None:
        for name, why in result.refused.items():
            folder.append(REFUSED, json.dumps({"round": result.round, "client": name, "why": why}))

    stopped, failure, weights = "finished", None, _model_state(server)
    with (
        StopRequest() as stop,
        tqdm(total=server.rounds, initial=server.round, unit="round", disable=not progress, desc=config.method,
             dynamic_ncols=True) as bar,
    ):  # fmt: skip
        try:
            for metrics in run_rounds(
                server,
                exchange or InProcess(federation.clients),
                validation=federation.source.test,
                heldout=federation.heldout,
                delta=config.target_delta,
                on_begin=record_asked,
                on_end=record_refused,
            ):
                history.append(metrics)
                weights = _model_state(server)
                # before the state: a surplus line is dropped when the run is resumed, a gap would stay
                _append_durably(folder, METRICS, plain(metrics))
                folder.write(STATE, serialise_state(federation))
                if entries is not None:
                    entries.save(folder)
                bar.update()
                bar.set_postfix(accuracy=f"{metrics['validation/accuracy']:.3f}", epsilon=digits(metrics["epsilon"]))
                if stop.requested:
                    stopped = "interrupted"
                    break
        except RoundFailed as error:
            server.model.load_state_dict(weights)  # without the noise that a failed round may have added
            if error.exhausted and history:
                stopped = "budget"
            else:
                failure = error
    for client in federation.clients.values():
        client.ledger_session.stop()
    if failure is not None and not history:
        raise failure
    statement = _write_results(config, federation, folder, history, entries)
    if failure is not None:
        raise failure
    return FederatedRun(history, statement, federation, folder.path, stopped, _largest_total(config, federation))


def _append_durably(folder: RunFolder, name: str, values: Mapping[str, Any]) -> None:
    """Append a line of JSON to a file; it is on disk when this returns."""
    with (folder.path / name).open("a") as file:
        file.write(json.dumps(values) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _write_results(
    config: FederateConfig,
    federation: Federation,
    folder: RunFolder,
    history: list[Metrics],
    entries: LedgerEntries | None = None,
) -> Statement:
    """Write model, statement, traffic and figure, and return the statement."""
    server = federation.server
    folder.write("model.safetensors", safetensors_bytes(_model_state(server), {"format": "pt"}))
    private_noise = config.insecure_noise_seed is None
    caveats = [] if federation.clients else [SITES_KEEP_TOTALS]
    if federation.clients and is_own(config.data):
        caveats.append(SIZES_FROM_RECORDS)
    if federation.clients and federation.source.counted:
        caveats.append(CLASSES_COUNTED)
    if federation.clients and federation.public:
        caveats.append(public_origin(config.data, config.split_seed, federation.source, federation.public))
    if federation.feature_map is not None:
        caveats.append(federation.feature_map.description)
    if config.warm_start == "public":
        caveats.append(WARM_START)
    if entries is not None and entries.ledger is not None and entries.began_ledger():
        caveats.append(f"{new_ledger_notice(entries.ledger.path.name)}.")
    ledger = _ledger_note(config, federation)
    statement = federated_statement(config, server, private_noise, federation.public, ledger, caveats)
    statement = dataclasses.replace(statement, files=file_hashes(folder.path))
    folder.write("statement.txt", statement.text().encode())
    folder.write("statement.json", statement.json().encode())
    folder.write("bytes.md", traffic_table(federation, history).encode())
    from gnomon.figures.curve import training_curve  # noqa: PLC0415  # loads matplotlib

    training_curve(history, f"{config.method} on {config.data}", folder.path / "curve.png", "round")
    return statement


def _model_state(server: Server) -> Arrays:
    """Return a copy of the global model's state."""
    return {name: value.detach().cpu().contiguous().clone() for name, value in server.model.state_dict().items()}


def _largest_total(config: FederateConfig, federation: Federation) -> Total | None:
    """Return the ledger's total for the client whose records paid the most, over all runs on them."""
    totals = [client.ledger_session.total(config.target_delta) for client in federation.clients.values()]
    return max((total for total in totals if total is not None), key=lambda total: total.counted, default=None)


def _ledger_note(config: FederateConfig, federation: Federation) -> dict[str, Any] | None:
    """Return the ledger's note in the statement: that of the first client with a run in the ledger.

    It is not that of the client that paid the most: where records are recognised by content, a single record could
    decide which client that is. Under a declared name all clients have the same total.
    """
    sessions = [client.ledger_session for client in federation.clients.values() if client.ledger_session.identified]
    session = next((session for session in sessions if session.run), next(iter(sessions), None))
    return None if session is None else ledger_note(session, config.target_delta)


def traffic_table(federation: Federation, history: Sequence[Metrics]) -> str:
    """Return a Markdown table of a client's traffic in a round, beside that of FedAvg."""
    server = federation.server
    asked = [row.get("asked", row["accepted"] + row["refused"]) for row in history]
    model_bytes = array_bytes(server.weights)
    later = slice(1, None) if len(history) > 1 else slice(None)
    down = sum(row["bytes/down"] for row in history[later]) / max(1, sum(asked[later]))
    up = sum(row["bytes/up"] for row in history) / max(1, sum(row["accepted"] for row in history))
    first = history[0]["bytes/down"] / max(1, asked[0]) if history else 0
    lines = [
        "| a client and round | down, bytes | up, bytes |",
        "|---|---|---|",
        f"| {server.strategy.name} | {down:,.0f} | {up:,.0f} |",
        f"| {server.strategy.name}, first round | {first:,.0f} | {up:,.0f} |",
        f"| the whole model both ways (fedavg) | {model_bytes:,} | {model_bytes:,} |",
        "",
        f"All rounds and clients: {sum(row['bytes/down'] for row in history):,} bytes down, "
        f"{sum(row['bytes/up'] for row in history):,} up. Payload, without the protocol's overhead.",
    ]
    return "\n".join(lines) + "\n"
