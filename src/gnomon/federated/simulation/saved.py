"""What a federated run keeps on disk to go on, and the checks that it is still the same run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from gnomon.data import Records, fingerprints
from gnomon.errors import SettingError
from gnomon.federated.private_mean import PrivateMean
from gnomon.federated.server import Server
from gnomon.federated.simulation.setup import Federation, names, participations
from gnomon.federated.state import PersistentState
from gnomon.runs.federate_config import FederateConfig
from gnomon.runs.folder import RunFolder
from gnomon.training.metrics import Metrics

STATE, ASKED, METRICS = "state.safetensors", "asked.jsonl", "metrics.jsonl"
RECORDS = "unprotected-records.json"
"""A mark of each client's records. For the data holder only: who knows all records but one could try the last."""

PARTS = "data, private-records, public-records, partition, split-seed, clients and holdout decide them"
ELSE = "put them back, or begin in another folder"


class KeptFolder(RunFolder):
    """The folder of a run that goes on.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     KeptFolder(Path(place)).left(FederateConfig(clients=2, rounds=5))
    {'client-0': 5, 'client-1': 5}
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._asked = [json.loads(line) for line in _lines(path / ASKED)]
        if not all(isinstance(entry, dict) and isinstance(entry.get("clients"), dict) for entry in self._asked):
            raise SettingError(
                str(path / ASKED),
                "a file of another version",
                "one of this version, which says what each round cost; begin in another folder",
            )
        self._state = (
            PersistentState.from_bytes((path / STATE).read_bytes()) if (path / STATE).exists() else PersistentState()
        )
        self._ended = int(self._state.numbers.get("server|round", 0))

    def left(self, config: FederateConfig) -> dict[str, int]:
        """In how many more rounds each client may take part.

        Noise that was worked out for a target pays for as many as were planned, and a lost round is one of them. A
        target beside the noise, and one for whole clients, are kept by the server's own accounts.
        """
        clients = names(config)
        left = participations(config, clients, after=self._ended)
        if config.noise_multiplier is not None or config.unit == "client":
            return left
        asked = [name for entry in self._asked for name in entry["clients"]]
        planned = participations(config, clients)
        return {name: min(left[name], planned[name] - asked.count(name)) for name in clients}

    def restore(self, config: FederateConfig, federation: Federation) -> list[Metrics]:
        """Put everything back, charge every round that anybody was asked in, and give the history.

        Settings under which those rounds would have cost something else, or other records, are refused.
        """
        self._same_records(federation)
        self._same_terms(federation.server)
        _restore(config, federation, self._state)
        for entry in self._asked:
            if isinstance(federation.server.strategy.aggregate, PrivateMean):
                federation.server.strategy.aggregate.account.charge()
            for name in entry["clients"]:
                federation.server.members[name].account.charge(config.steps_per_round)
        # without a line that was cut short, which the next one would be written behind
        self.write(ASKED, "".join(json.dumps(entry) + "\n" for entry in self._asked).encode())
        rows = [json.loads(line) for line in _lines(self.path / METRICS)]
        history: list[Metrics] = [row for row in rows if row["round"] <= self._ended]
        self.write(METRICS, "".join(json.dumps(row) + "\n" for row in history).encode())
        return history

    def _same_records(self, federation: Federation) -> None:
        """A record that moved to another client would have taken part in more rounds than any client was asked in."""
        if not federation.clients:  # they are elsewhere, and know it themselves
            return
        now, path = marks(federation), self.path / RECORDS
        if self._asked:
            if not path.exists():
                raise SettingError(
                    str(path), "not there", "the file that the run left there, or begin in another folder"
                )
            then = json.loads(path.read_text())
            for name in sorted({*then, *now}):
                if now.get(name) != then.get(name):
                    allowed = f"those of the rounds so far: {PARTS}; {ELSE}"
                    raise SettingError(f"the records of {name}", "other ones", allowed)
        self.write(RECORDS, json.dumps(now).encode())

    def _same_terms(self, server: Server) -> None:
        for entry in self._asked:
            now = terms(server, list(entry["clients"]))
            for name, then in entry["clients"].items():
                if now.get(name) != then:
                    allowed = f"{then}, as in round {entry['round']}: {ELSE}"
                    raise SettingError(f"the settings of {name}", now.get(name, "not there"), allowed)


def terms(server: Server, names: Sequence[str]) -> dict[str, str]:
    """What a round costs each of these clients, in words: the same for the same cost."""
    mean = server.strategy.aggregate
    shared = f", for whole clients noise {mean.account.noise_multiplier!r}" if isinstance(mean, PrivateMean) else ""
    return {name: server.members[name].terms + shared for name in names if name in server.members}


def marks(federation: Federation) -> dict[str, str]:
    """A mark of the records of each client in this process."""
    return {name: mark(client.data) for name, client in federation.clients.items()}


def mark(records: Records) -> str:
    """The same for the same inputs, in any order.

    >>> import torch
    >>> records = Records(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1]))
    >>> mark(records) == mark(records[torch.tensor([1, 0])]), mark(records) == mark(records[:1])
    (True, False)
    """
    return hashlib.blake2b(b"".join(sorted(fingerprints(records))), digest_size=16).hexdigest()


def state_of(federation: Federation) -> PersistentState:
    """Everything that a resumed run needs, in one file."""
    state = PersistentState({"server/weights": dict(federation.server.model.state_dict())})
    for owner, persistent in _owners(federation).items():
        state.arrays |= {f"{owner}/{group}": arrays for group, arrays in persistent.arrays.items()}
        state.numbers |= {f"{owner}|{name}": value for name, value in persistent.numbers.items()}
    return state


def _owners(federation: Federation) -> dict[str, PersistentState]:
    return {"server": federation.server.persistent} | {name: one.persistent for name, one in federation.clients.items()}


def _restore(config: FederateConfig, federation: Federation, state: PersistentState) -> None:
    if not state.arrays:
        return
    server, owners = federation.server, _owners(federation)
    kept = state.arrays["server/weights"]
    shapes = {name: value.shape for name, value in server.model.state_dict().items()}
    if shapes != {name: value.shape for name, value in kept.items()}:
        raise SettingError("model", config.model, f"the model of the rounds so far, by model, data and classes: {ELSE}")
    server.model.load_state_dict(kept)
    for key, arrays in state.arrays.items():
        owner, _, group = key.partition("/")
        if key != "server/weights":
            owners[owner].arrays[group] = arrays
    for key, value in state.numbers.items():
        owner, _, name = key.partition("|")
        owners[owner].numbers[name] = value
    server.round = int(server.persistent.numbers["round"])


def _lines(path: Path) -> list[str]:
    """The complete lines of a file; one that a kill cut short does not count, nor does a missing file."""
    if not path.exists():
        return []
    return [line for line in path.read_text().split("\n")[:-1] if line]
