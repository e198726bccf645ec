"""The files with which a federated run resumes, and the checks that the resumed run is still the same run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from gnomon.data import Records, fingerprints
from gnomon.errors import DataError, SettingError
from gnomon.federated.builders import Federation, client_names, rounds_per_client
from gnomon.federated.server import Server
from gnomon.federated.state import ClientState, ServerState, Tree, load_tree, save_tree
from gnomon.runs.federate_config import FederateConfig
from gnomon.runs.folder import RunFolder
from gnomon.training.metrics import Metrics

STATE, METRICS = "state.safetensors", "metrics.jsonl"
ASKED = "asked.jsonl"
"""The clients that got a message in each round, and what the round cost them; written before any message is sent."""
ANSWERED = "answered.jsonl"
"""The uploads that the server of a deployment received; written before it looks at them."""
RECORDS = "unprotected-records.json"
"""A hash of each client's records. For the data holder only: with all records but one, the last one can be guessed."""

RECORD_SETTINGS = "data, private-records, public-records, partition, split-seed, clients and holdout"
RESTORE = "Restore the settings, or begin in another folder."


class SavedRunFolder(RunFolder):
    """The folder of a run that is resumed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     SavedRunFolder(Path(folder)).remaining_rounds(FederateConfig(clients=2, rounds=5))
    {'client-0': 5, 'client-1': 5}
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._asked = [json.loads(line) for line in _complete_lines(path / ASKED)]
        if not all(isinstance(entry, dict) and isinstance(entry.get("clients"), dict) for entry in self._asked):
            raise DataError(path / ASKED, "does not say what each round cost", "begin in another folder")
        self._state: Tree | None = load_tree((path / STATE).read_bytes()) if (path / STATE).exists() else None
        self._ended = 0 if self._state is None else int(self._state["server"]["round"])

    def remaining_rounds(self, config: FederateConfig) -> dict[str, int]:
        """Return the number of further rounds in which each client may take part.

        Noise that was calibrated to a target pays for the planned number of rounds, and a lost round is one of them.
        The server's own accounts enforce a target beside a noise multiplier, and a target for whole clients.
        """
        clients = client_names(config)
        remaining = rounds_per_client(config, clients, after=self._ended)
        if config.noise_multiplier is not None or config.unit == "client":
            return remaining
        asked = [name for entry in self._asked for name in entry["clients"]]
        planned = rounds_per_client(config, clients)
        return {name: min(remaining[name], planned[name] - asked.count(name)) for name in clients}

    def restore(self, config: FederateConfig, federation: Federation) -> list[Metrics]:
        """Restore the state, charge every round in which a client was asked, and return the metrics so far.

        Raises:
            SettingError: under the present settings past rounds would have cost something else, a client's records
                have changed, or the model is another one.
        """
        self._check_records(federation)
        self._check_costs(federation.server)
        if self._state is not None:
            _restore_state(config, federation, self._state)
        private_mean = federation.server.strategy.private_mean
        for entry in self._asked:
            if private_mean is not None:
                private_mean.account.charge()
            for name in entry["clients"]:
                federation.server.profiles[name].account.charge(config.steps_per_round)
        # rewritten, because the last line may be incomplete and the next one would be appended to it
        self.write(ASKED, "".join(json.dumps(entry) + "\n" for entry in self._asked).encode())
        rows = [json.loads(line) for line in _complete_lines(self.path / METRICS)]
        history: list[Metrics] = [row for row in rows if row["round"] <= self._ended]
        self.write(METRICS, "".join(json.dumps(row) + "\n" for row in history).encode())
        return history

    def _check_records(self, federation: Federation) -> None:
        """Refuse changed records: a record that moved to another client may be in more rounds than any client."""
        if not federation.clients:  # the clients of a deployment check their own records
            return
        current, path = client_record_hashes(federation), self.path / RECORDS
        if self._asked:
            if not path.exists():
                raise DataError(path, "is missing", "restore it, or begin in another folder")
            saved = json.loads(path.read_text())
            for name in sorted({*saved, *current}):
                if current.get(name) != saved.get(name):
                    message = (
                        f"the records of {name} have changed since the first round; {RECORD_SETTINGS} decide them."
                    )
                    raise SettingError.with_message(f"{message} {RESTORE}")
        self.write(RECORDS, json.dumps(current).encode())

    def _check_costs(self, server: Server) -> None:
        """Refuse settings under which a past round would have cost something else."""
        for entry in self._asked:
            current = round_costs(server, list(entry["clients"]))
            for name, saved in entry["clients"].items():
                if current.get(name) != saved:
                    raise SettingError.with_message(
                        f"round {entry['round']} cost {name}: {saved}; under the present settings it would have cost: "
                        f"{current.get(name, 'nothing, since there is no such client')}. {RESTORE}"
                    )


def round_costs(server: Server, names: Sequence[str]) -> dict[str, str]:
    """Return a description of what a round costs each client; equal costs have equal descriptions."""
    mean = server.strategy.private_mean
    shared = "" if mean is None else f", for whole clients noise {mean.account.noise_multiplier!r}"
    return {name: server.profiles[name].round_cost + shared for name in names if name in server.profiles}


def client_record_hashes(federation: Federation) -> dict[str, str]:
    """Return a hash of the records of each client in this process."""
    return {name: records_hash(client.data) for name, client in federation.clients.items()}


def records_hash(records: Records) -> str:
    """Return a hash of the records' inputs, before any feature map, that does not depend on their order.

    >>> import torch
    >>> records = Records(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1]))
    >>> records_hash(records) == records_hash(records[torch.tensor([1, 0])])
    True
    >>> records_hash(records) == records_hash(records[:1])
    False
    """
    raw = records if records.raw is None else records.raw
    return hashlib.blake2b(b"".join(sorted(fingerprints(raw))), digest_size=16).hexdigest()


def serialise_state(federation: Federation) -> bytes:
    """Return the content of the state file: the global model, the server's state and the clients' states."""
    return save_tree(
        {
            "weights": dict(federation.server.model.state_dict()),
            "server": federation.server.state.to_tree(),
            "clients": {name: client.state.to_tree() for name, client in federation.clients.items()},
        }
    )


def _restore_state(config: FederateConfig, federation: Federation, tree: Tree) -> None:
    server = federation.server
    shapes = {name: value.shape for name, value in server.model.state_dict().items()}
    if shapes != {name: value.shape for name, value in tree["weights"].items()}:
        raise SettingError.with_message(
            f"model = {config.model!r} is not the model of the rounds so far, which model, data and classes decide. "
            f"{RESTORE}",
            name="model",
            value=config.model,
        )
    server.model.load_state_dict(tree["weights"])
    server.state = ServerState.from_tree(tree["server"])
    for name, client in tree["clients"].items():
        federation.clients[name].state = ClientState.from_tree(client)
    server.round = server.state.round


def _complete_lines(path: Path) -> list[str]:
    """Return the complete lines of a file, without a last one that was cut short; none if the file is missing."""
    if not path.exists():
        return []
    return [line for line in path.read_text().split("\n")[:-1] if line]
