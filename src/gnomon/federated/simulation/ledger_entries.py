"""The ledger entries of a simulated federation: one run in the ledger for each client, found again by its label."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path

from gnomon.errors import DataError, SettingError
from gnomon.ledger import Head, Ledger
from gnomon.runs.federate_config import FederateConfig
from gnomon.runs.folder import RunFolder
from gnomon.validate import whole

LEDGER = "ledger.json"
"""The file of a run folder that says where its ledger entries are."""


def new_token() -> str:
    """Return a random token that identifies the ledger entries of one run.

    >>> len(new_token())
    12
    """
    return secrets.token_hex(6)


def round_ledger(config: FederateConfig, path: Path) -> Ledger:
    """Return a ledger that charges the steps of a whole round with one durable entry.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ledger = round_ledger(FederateConfig(steps_per_round=7), Path(folder) / "ledger.sqlite")
    ...     ledger.close()
    >>> ledger.block
    7
    """
    steps = whole("steps-per-round", config.steps_per_round)
    return Ledger(path, block=1 if config.unit == "client" else steps)


@dataclass(frozen=True)
class LedgerEntries:
    """The ledger of a run, and the token by which its entries are found again.

    >>> LedgerEntries.new(FederateConfig(method="fedavg"), None).label("north").split(" (")[0]
    'fedavg, north'
    """

    ledger: Ledger | None
    """None if the run is not counted in a ledger."""
    method: str
    token: str
    dataset: str | None = None
    """The declared name of the data set, if it has one."""

    @classmethod
    def new(cls, config: FederateConfig, ledger: Ledger | None, dataset: str | None = None) -> LedgerEntries:
        """Return the entries of a new run. A run with seeded noise has no guarantee, so it is not counted."""
        if ledger is None or config.insecure_noise_seed is not None:
            return cls(None, config.method, new_token())
        return cls(round_ledger(config, ledger.path), config.method, new_token(), dataset)

    @classmethod
    def of_saved_run(cls, config: FederateConfig, folder: RunFolder, ledger: Ledger | None) -> LedgerEntries:
        """Return the entries of a resumed run, and close its earlier runs in the ledger; what they spent stays spent.

        Raises:
            SettingError: a ledger is given for a run that began without one.
            DataError: the ledger of the run is missing.
        """
        path = folder.path / LEDGER
        if not path.exists():
            if ledger is not None:
                raise SettingError("ledger", str(ledger.path), "no ledger, because the run began without one")
            return cls(None, config.method, new_token())
        saved = json.loads(path.read_text())
        ledger_path = Path(saved["path"]) if ledger is None else ledger.path
        if not ledger_path.exists():
            raise DataError(
                f"the run's ledger {ledger_path}", "does not exist", "give its path with --ledger if it moved"
            )
        own = round_ledger(config, ledger_path)
        entries = cls(own, config.method, saved["token"], saved.get("dataset"))
        own.verify(Head.parse(saved["head"]))
        for run in own.state().runs.values():
            if run.label.endswith(f"({entries.token})"):
                own.close_run(run.id)
        return entries

    def label(self, client: str) -> str:
        """Return the label of a client's run in the ledger."""
        return f"{self.method}, {client} ({self.token})"

    def began_ledger(self) -> bool:
        """Return whether this run's entries are the first ones of the ledger."""
        first = None if self.ledger is None else self.ledger.first_run()
        return first is not None and first.label.endswith(f"({self.token})")

    def save(self, folder: RunFolder) -> None:
        """Write to the run folder where the entries are, and the ledger's head, so that a ledger that lost entries is
        refused when the run is resumed."""
        if self.ledger is not None:
            saved = {"path": str(self.ledger.path.resolve()), "token": self.token, "head": str(self.ledger.head())}
            folder.write(LEDGER, json.dumps(saved | {"dataset": self.dataset}).encode())
