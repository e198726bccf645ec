"""A real federation's settings, and the folder in which a site keeps what must survive its processes."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gnomon.config import read_yaml
from gnomon.data import Records, load
from gnomon.federated.client import Client
from gnomon.federated.memory import Memory
from gnomon.federated.parcel import Parcel
from gnomon.federated.refused import Refused
from gnomon.federated.setup import PUBLIC, build_client, build_strategy, member, participations
from gnomon.federated_config import FederateConfig
from gnomon.runs import RunFolder
from gnomon.validate import SettingError, whole

MEMORY, PUBLIC_FILE, SPENT, LOCK = "memory.safetensors", "public.safetensors", "spent.json", "lock"
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
        sites[str(name)] = Site(whole(f"sites.{name}", fields.get("records")), None if node is None else int(node))
    return FederateConfig.from_dict(values | {"clients": len(sites)}), sites


class SiteFolder:
    """What a site remembers between rounds, when every round may be a process of its own.

    Steps are written down before their noise is drawn. A round that is killed has been paid for.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     folder = SiteFolder(Path(place) / "state")
    ...     folder.spend(10, {"noise_multiplier": 2.0})
    ...     folder.spent({"noise_multiplier": 2.0})
    10
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._files = RunFolder.__new__(RunFolder)
        self._files.path = path

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One round at a time: two processes would not see each other's spending."""
        with (self.path / LOCK).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Refused("error", "another round is running") from None
            yield

    def spend(self, steps: int, settings: dict[str, Any]) -> None:
        """On disk when this returns: so many steps have been charged in all."""
        self._files.write(SPENT, json.dumps({"steps": steps, "settings": settings}).encode())
        handle = os.open(self.path, os.O_RDONLY)  # the name, too, must survive a power cut
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def spent(self, settings: dict[str, Any]) -> int:
        """How many steps have been charged. A folder of a run with other settings is refused."""
        if not (self.path / SPENT).exists():
            return 0
        found = json.loads((self.path / SPENT).read_text())
        if found["settings"] != settings:
            raise SettingError("state", str(self.path), "a new folder: this one belongs to a run with other settings")
        return whole("steps", found["steps"], least=0)

    def memory(self) -> Memory:
        path = self.path / MEMORY
        return Memory.from_bytes(path.read_bytes()) if path.exists() else Memory()

    def keep(self, memory: Memory) -> None:
        self._files.write(MEMORY, memory.to_bytes())

    def public(self, parcel: Parcel) -> Records:
        """The public records: from the parcel, or kept from an earlier one."""
        path = self.path / PUBLIC_FILE
        if "public" in parcel.arrays:
            self._files.write(PUBLIC_FILE, Memory({"public": parcel.arrays["public"]}).to_bytes())
        elif not path.exists():
            raise Refused("contents", "no public records")
        arrays = Memory.from_bytes(path.read_bytes()).arrays["public"]
        return Records(arrays["inputs"], arrays["targets"])


def answer(config: FederateConfig, sites: dict[str, Site], name: str, data: str, state: Path, parcel: Parcel) -> Parcel:
    """A site's part in one round, from its own records, its own copy of the settings and its folder.

    The server's parcel holds weights and public things; it cannot change noise, bound, sampling or number of steps.
    """
    if name not in sites:
        raise SettingError("name", name, f"one of the sites {', '.join(sites)}")
    folder = SiteFolder(state)
    with folder.alone():
        source = load(data)
        public = folder.public(parcel) if config.method in PUBLIC else source.train[:0]
        strategy = build_strategy(config, public)
        rounds = participations(config, sites)[name]
        about = member(config, strategy, sites[name].records, rounds)
        settings = {key: value for key, value in about.account.to_dict().items() if key != "steps"}
        memory = folder.memory()
        client: Client = build_client(
            config,
            name,
            source.train,
            about,
            strategy,
            source,
            rounds=rounds,
            memory=memory,
            on_spend=lambda steps: folder.spend(steps, settings),
        )
        spent = folder.spent(settings)
        if spent:
            client.trainer.account.charge(spent)
        reply = client.train(parcel)
        folder.keep(memory)
        (state / "statement.txt").write_text(client.trainer.statement().text())
        return reply


def torch_threads(count: int | None) -> None:
    """As many threads as the settings say."""
    if count is not None:
        torch.set_num_threads(whole("threads", count))
