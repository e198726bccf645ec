"""Where the rounds of a simulated federation stand in the ledger: one run for each client, found again by its label."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path

from gnomon.errors import SettingError
from gnomon.ledger import Head, Ledger
from gnomon.runs.federate_config import FederateConfig
from gnomon.runs.folder import RunFolder
from gnomon.validate import whole

LEDGER = "ledger.json"


def token() -> str:
    """A name that no other run has.

    >>> len(token())
    12
    """
    return secrets.token_hex(6)


def by_rounds(config: FederateConfig, path: Path) -> Ledger:
    """A ledger in which a round is paid for as a whole, by one durable entry.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     ledger = by_rounds(FederateConfig(steps_per_round=7), Path(place) / "ledger.sqlite")
    ...     ledger.close()
    >>> ledger.block
    7
    """
    steps = whole("steps-per-round", config.steps_per_round)
    return Ledger(path, block=1 if config.unit == "client" else steps)


@dataclass(frozen=True)
class Entries:
    """The ledger of a run, or None, and the word by which its entries are found again.

    >>> Entries.new(FederateConfig(method="fedavg"), None).label("north").split(" (")[0]
    'fedavg, north'
    """

    ledger: Ledger | None
    method: str
    token: str
    dataset: str | None = None
    """The declared name of the data set, if it has one."""

    @classmethod
    def new(cls, config: FederateConfig, ledger: Ledger | None, dataset: str | None = None) -> Entries:
        """Those of a run that begins. Seeded noise hides nothing, so there is nothing to count."""
        if ledger is None or config.insecure_noise_seed is not None:
            return cls(None, config.method, token())
        return cls(by_rounds(config, ledger.path), config.method, token(), dataset)

    @classmethod
    def of(cls, config: FederateConfig, folder: RunFolder, ledger: Ledger | None) -> Entries:
        """Those of a run that goes on. What it had entered is closed: it stays paid, and the rest is entered anew."""
        path = folder.path / LEDGER
        if not path.exists():
            if ledger is not None:
                raise SettingError("ledger", str(ledger.path), "none: this run began without one")
            return cls(None, config.method, token())
        kept = json.loads(path.read_text())
        place = Path(kept["path"]) if ledger is None else ledger.path
        if not place.exists():
            raise SettingError("ledger", str(place), "the ledger of this run, with --ledger if it was moved")
        found = cls(by_rounds(config, place), config.method, kept["token"], kept.get("dataset"))
        assert found.ledger is not None
        found.ledger.verify(Head.parse(kept["head"]))
        for run in found.ledger.state().runs.values():
            if run.label.endswith(f"({found.token})"):
                found.ledger.close_run(run.id)
        return found

    def label(self, client: str) -> str:
        """What the ledger calls a client's part."""
        return f"{self.method}, {client} ({self.token})"

    def began_ledger(self) -> bool:
        """Whether this run's entries are the first ones of the ledger."""
        first = None if self.ledger is None else self.ledger.first_run()
        return first is not None and first.label.endswith(f"({self.token})")

    def remember(self, folder: RunFolder) -> None:
        """Leave in the folder of the run where its entries are, and the last one: a ledger that lost it is refused."""
        if self.ledger is not None:
            kept = {"path": str(self.ledger.path.resolve()), "token": self.token, "head": str(self.ledger.head())}
            folder.write(LEDGER, json.dumps(kept | {"dataset": self.dataset}).encode())
