"""The same server and clients behind Flower's ServerApp and ClientApp (Message API).

Flower carries messages between authenticated nodes; what is in them, what is accepted and what it costs is decided
elsewhere in this package. Nothing here draws noise.
"""

from __future__ import annotations

import io
import math
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gnomon.federated.deployment.node import QUIET

os.environ.update(QUIET)  # before anything of Flower is imported

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from gnomon.data import load
from gnomon.federated.deployment.answers import ANSWERED, AnswerLog
from gnomon.federated.deployment.site import Site, answer, read_federation, torch_threads
from gnomon.federated.message import Message
from gnomon.federated.refusal import REASONS, Refused
from gnomon.federated.rounds import Answer, reason_of
from gnomon.federated.simulation.run import KeptFolder, go
from gnomon.federated.simulation.settings import declared
from gnomon.federated.simulation.setup import Federation, build_server
from gnomon.runs.folder import RunFolder

NUMBERS, REFUSED = "numbers", "refused"
MOST_BYTES = 2**28
"""No request above this is read at all. What a method may upload is checked afterwards, to the byte."""
POLL = 1.0
LATER = 30.0
"""How long a round after the first waits for a site that has just gone, and for new nodes to say who they are."""
SILENCE = 120.0
"""After how long a node that says nothing is asked for its name again: a slow one would have to answer twice."""
TRIES = 3
"""In how many rounds a node is asked, until it goes and comes back; in each again after errors, ever more rarely."""


def to_records(message: Message) -> RecordDict:
    """A message as Flower's records.

    >>> to_message(to_records(Message(3, {"change": {"w": torch.ones(2)}}, {"loss": 0.5}))).numbers
    {'loss': 0.5}
    """
    records = RecordDict({NUMBERS: ConfigRecord({"round": message.round, **message.numbers})})
    for group, arrays in message.arrays.items():
        named = {name: Array(value.detach().cpu().contiguous().numpy()) for name, value in arrays.items()}
        records[f"arrays.{group}"] = ArrayRecord(named)
    return records


def to_message(records: RecordDict) -> Message:
    """Flower's records as a message; whatever is not one is refused."""
    size = sum(len(array.data) for record in records.array_records.values() for array in record.values())
    if size > MOST_BYTES:
        raise Refused("bytes")
    try:
        numbers = {str(name): float(value) for name, value in records.config_records[NUMBERS].items()}  # type: ignore[arg-type]
        message = Message(int(numbers.pop("round")), {}, numbers)
        for group, record in records.array_records.items():
            message.arrays[group.removeprefix("arrays.")] = {name: _tensor(array) for name, array in record.items()}
    except Exception as error:  # whatever a sender thought of
        raise Refused("contents") from error
    return message


def _tensor(array: Array) -> Tensor:
    """An array in NumPy's format whose header claims as many bytes as there are, and nothing else."""
    file = io.BytesIO(array.data)
    if np.lib.format.read_magic(file) != (1, 0):
        raise Refused("contents")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(array.data) - file.tell():
        raise Refused("contents")
    return torch.from_numpy(np.array(np.load(io.BytesIO(array.data), allow_pickle=False)))


# -- the server's side -----------------------------------------------------------------------------


class Names:
    """Which node is which site: the one that first says its name, or the one that the settings pin to it.

    Nodes are asked without waiting for them: one that never answers must not hold up the others.
    """

    def __init__(self, grid: Grid, sites: Mapping[str, Site], ttl: float) -> None:
        self._grid, self._sites, self._ttl = grid, sites, ttl
        self.nodes = {name: site.node for name, site in sites.items() if site.node is not None}
        self._settled = set(self.nodes.values())
        self._rounds: Counter[int] = Counter()
        self._queries: dict[str, int] = {}
        self._sent: dict[int, float] = {}  # when whoever has not answered was asked
        self.begin()

    def begin(self) -> None:
        """Another round: what went wrong in the last one is forgotten."""
        self._now: set[int] = set()
        self._due: dict[int, float] = {}
        self._pause: dict[int, float] = {}

    def look(self) -> set[int]:
        """The nodes that are there now. New ones are asked for their names, and whoever has answered is heard."""
        there = list(self._grid.get_node_ids())
        self._settled &= {*there, *self.nodes.values()}
        for kept in (self._rounds, self._sent, self._due, self._pause):
            for node in set(kept) - set(there):
                del kept[node]
        self._ask([node for node in there if self._may_ask(node)])
        self._hear()
        return set(there)

    def waiting(self, there: set[int]) -> bool:
        """Whether somebody has been asked in this round and has said nothing yet."""
        return bool(there & self._now & set(self._sent) - self._settled)

    def _may_ask(self, node: int) -> bool:
        due = max(self._due.get(node, 0.0), self._sent.get(node, -math.inf) + SILENCE)
        tried = node not in self._now and self._rounds[node] >= TRIES
        return node not in self._settled and not tried and time.monotonic() >= due

    def _ask(self, nodes: list[int]) -> None:
        requests = [
            FlowerMessage(content=RecordDict(), message_type="query", dst_node_id=node, group_id="names", ttl=self._ttl)
            for node in nodes
        ]
        sent: list[str | None] = list(self._grid.push_messages(requests)) if requests else []
        self._rounds.update(set(nodes) - self._now)
        self._now |= set(nodes)
        for node, query in zip(nodes, sent or [None] * len(nodes), strict=True):
            if query is None:  # it could not be sent
                self._failed(node)
                continue
            self._queries[query] = node
            self._sent[node] = time.monotonic()

    def _hear(self) -> None:
        for reply in self._grid.pull_messages(list(self._queries)) if self._queries else ():
            node = self._queries.pop(reply.metadata.reply_to_message_id)
            self._sent.pop(node, None)
            if reply.has_error():
                self._failed(node)
                continue
            self._settled.add(node)
            about = reply.content.config_records.get("about")
            name = "" if about is None else str(about.get("name", ""))
            if name in self._sites and name not in self.nodes:
                self.nodes[name] = node

    def _failed(self, node: int) -> None:
        self._pause[node] = min(LATER, 2 * self._pause.get(node, POLL / 2))
        self._due[node] = time.monotonic() + self._pause[node]


class OverFlower:
    """Delivers a round's messages through Flower's grid, and waits for the answers until a deadline.

    Before its first round the server waits for sites that are not there yet, up to `patience` seconds; later it waits a
    moment.
    """

    def __init__(self, grid: Grid, sites: Mapping[str, Site], deadline: float, patience: float | None = None) -> None:
        self._grid, self._deadline = grid, deadline
        self._patience = deadline if patience is None else patience
        self._names = Names(grid, sites, deadline)
        self._nodes = self._names.nodes
        self._missed: set[str] = set()
        self._met = False

    def __call__(self, messages: Mapping[str, Message]) -> Iterator[Answer]:
        online = self._meet(messages)
        known = {name: self._nodes[name] for name in messages if self._nodes.get(name) in online}
        names = {node: name for name, node in known.items()}
        requests = [self._message(messages[name], node) for name, node in known.items()]
        self._missed |= set(messages)
        for reply in self._grid.send_and_receive(requests, timeout=self._deadline) if requests else ():
            name = names.get(reply.metadata.src_node_id)
            if name is not None:
                self._missed.discard(name)
                yield name, _read(reply)

    def _message(self, message: Message, node: int) -> FlowerMessage:
        content, ttl = to_records(message), self._deadline
        return FlowerMessage(
            content=content, message_type="train", dst_node_id=node, group_id=str(message.round), ttl=ttl
        )

    def _meet(self, wanted: Mapping[str, Message]) -> set[int]:
        """The nodes that are there.

        Waits for wanted sites that are not, and for new nodes that may be one; for a site that missed its last round
        nobody waits.
        """
        until = time.monotonic() + (min(LATER, self._patience) if self._met else self._patience)
        self._names.begin()
        while True:
            online = self._names.look()
            away = {name for name in wanted if self._nodes.get(name) not in online}
            wait = away - self._missed or (away and self._names.waiting(online))
            if not wait or time.monotonic() >= until:
                self._met = True
                return online
            time.sleep(POLL)


def _read(reply: FlowerMessage) -> Message | Refused:
    if reply.has_error():
        return Refused("error")
    about = reply.content.config_records.get(REFUSED)
    if about is not None:
        reason = str(about.get("reason"))
        return Refused(reason if reason in REASONS else "error")
    try:
        return to_message(reply.content)
    except Refused as refused:
        return refused


def serve(place: Path, out: Path, grid: Grid, deadline: float, patience: float | None = None) -> None:
    """All rounds that are left of a federation; a folder with rounds in it is gone on with."""
    config, sites = read_federation(place)
    torch_threads(config.threads)
    source = declared(config, load(config.data, config.data_dir))
    sizes = {name: site.records for name, site in sites.items()}
    server = build_server(config, source, source.train, sizes)  # all of the server's records are public
    used = server.strategy.public is not None or config.warm_start == "public"
    federation = Federation(server, {}, source, {}, len(source.train) if used else 0)
    history = []
    if (out / "config.yaml").exists():
        folder: RunFolder = (kept := KeptFolder(out))
        history = kept.restore(config, federation)
    else:
        folder = RunFolder(out)
    folder.write("config.yaml", config.to_yaml().encode())  # what may change, such as more rounds, is the latest
    exchange = AnswerLog(OverFlower(grid, sites, deadline, patience), out / ANSWERED)
    exchange.tell(server)
    go(config, federation, folder, history, False, exchange)


server_app = ServerApp()


@server_app.main()
def _serve(grid: Grid, context: Context) -> None:
    settings = context.run_config
    times = (float(settings[name]) for name in ("deadline", "patience"))
    serve(Path(str(settings["federation"])), Path(str(settings["out"])), grid, *times)


# -- a site's side ---------------------------------------------------------------------------------

client_app = ClientApp()


@client_app.query()
def _name(request: FlowerMessage, context: Context) -> FlowerMessage:
    about = ConfigRecord({"name": str(context.node_config.get("name", ""))})
    return FlowerMessage(content=RecordDict({"about": about}), reply_to=request)


@client_app.train()
def _train(request: FlowerMessage, context: Context) -> FlowerMessage:
    """A round at a site. An error's text stays here: it could quote a record."""
    try:
        content = to_records(_answer(to_message(request.content), context.node_config))
    except Exception as error:
        _note(error, context.node_config)
        content = RecordDict({REFUSED: ConfigRecord({"reason": reason_of(error).reason})})
    return FlowerMessage(content=content, reply_to=request)


def _answer(message: Message, node: Mapping[str, Any]) -> Message:
    config, sites = read_federation(Path(str(node["federation"])))
    torch_threads(config.threads)
    place, known = node.get("ledger"), node.get("data-id")
    return answer(
        config, sites, str(node["name"]), str(node["data"]), Path(str(node["state"])), message,
        ledger=None if place is None else Path(str(place)), dataset=None if known is None else str(known),
    )  # fmt: skip


def _note(error: Exception, node: Mapping[str, Any]) -> None:
    """For the site's own eyes."""
    if "state" in node:
        state = Path(str(node["state"]))
        state.mkdir(parents=True, exist_ok=True)
        with (state / "errors.log").open("a") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {type(error).__name__}: {error}\n")
