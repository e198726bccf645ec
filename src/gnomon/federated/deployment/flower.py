"""Flower's ServerApp and ClientApp (Message API) around the server and the sites.

Flower carries messages between authenticated nodes. Their content, the checks and the privacy cost are decided
elsewhere in this package; nothing in this module draws noise.
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

from gnomon.federated.deployment.supernode import QUIET

os.environ.update(QUIET)  # before any module of Flower is imported

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from gnomon.data import load
from gnomon.federated.builders import Federation, build_server, with_declared_classes
from gnomon.federated.deployment.site import Site, read_federation, run_site_round, set_threads
from gnomon.federated.deployment.upload_log import UploadLog
from gnomon.federated.message import Message
from gnomon.federated.refusal import REASONS, Refused
from gnomon.federated.rounds import Reply, refusal_for
from gnomon.federated.simulation.run import run_remaining_rounds
from gnomon.federated.simulation.saved import ANSWERED, SavedRunFolder
from gnomon.runs.folder import RunFolder

NUMBERS, REFUSED = "numbers", "refused"
MAX_BYTES = 2**28
"""A larger message is not read at all. The exact size of a strategy's upload is checked afterwards."""
POLL_SECONDS = 1.0
LATER_PATIENCE = 30.0
"""Seconds that later rounds wait for a site that has just left, and for new nodes to give their names."""
QUERY_TIMEOUT = 120.0
"""Seconds after which a node that has not given its name is asked again. A slow node should not have to reply twice."""
MAX_QUERY_ROUNDS = 3
"""The number of rounds in which a node is asked for its name, until it leaves and comes back."""


def to_records(message: Message) -> RecordDict:
    """Convert a message to Flower's records.

    >>> to_message(to_records(Message(3, {"change": {"w": torch.ones(2)}}, {"loss": 0.5}))).numbers
    {'loss': 0.5}
    """
    records = RecordDict({NUMBERS: ConfigRecord({"round": message.round, **message.numbers})})
    for group, arrays in message.arrays.items():
        named = {name: Array(value.detach().cpu().contiguous().numpy()) for name, value in arrays.items()}
        records[f"arrays.{group}"] = ArrayRecord(named)
    return records


def to_message(records: RecordDict) -> Message:
    """Convert Flower's records to a message.

    Raises:
        Refused: the records are too large, or are not a message.
    """
    size = sum(len(array.data) for record in records.array_records.values() for array in record.values())
    if size > MAX_BYTES:
        raise Refused("bytes")
    try:
        numbers = {str(name): float(value) for name, value in records.config_records[NUMBERS].items()}  # type: ignore[arg-type]
        message = Message(int(numbers.pop("round")), {}, numbers)
        for group, record in records.array_records.items():
            message.arrays[group.removeprefix("arrays.")] = {name: _tensor(array) for name, array in record.items()}
    except Exception as error:  # the sender may have sent anything
        raise Refused("contents") from error
    return message


def _tensor(array: Array) -> Tensor:
    """Convert an array in NumPy's format, version 1.0, whose header claims exactly the bytes that follow it."""
    file = io.BytesIO(array.data)
    if np.lib.format.read_magic(file) != (1, 0):
        raise Refused("contents")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(array.data) - file.tell():
        raise Refused("contents")
    return torch.from_numpy(np.array(np.load(io.BytesIO(array.data), allow_pickle=False)))


# -- the server's side -----------------------------------------------------------------------------


class NodeDirectory:
    """Knows which node is which site: the node that first gives the site's name, or the one that the settings pin.

    Nodes are asked for their names without waiting for the reply, so that a node that never replies delays no other.
    """

    def __init__(self, grid: Grid, sites: Mapping[str, Site], ttl: float) -> None:
        self._grid, self._sites, self._ttl = grid, sites, ttl
        self.nodes = {name: site.node for name, site in sites.items() if site.node is not None}
        """The node of each known site."""
        self._resolved = set(self.nodes.values())
        self._query_rounds: Counter[int] = Counter()
        self._queries: dict[str, int] = {}
        self._pending_since: dict[int, float] = {}
        self.start_round()

    def start_round(self) -> None:
        """Forget the failures of the last round."""
        self._asked: set[int] = set()
        self._retry_at: dict[int, float] = {}
        self._pause: dict[int, float] = {}

    def poll(self) -> set[int]:
        """Ask new nodes for their names, read the replies, and return the nodes that are online."""
        online = list(self._grid.get_node_ids())
        self._resolved &= {*online, *self.nodes.values()}
        for by_node in (self._query_rounds, self._pending_since, self._retry_at, self._pause):
            for node in set(by_node) - set(online):
                del by_node[node]
        self._ask([node for node in online if self._may_ask(node)])
        self._read_replies()
        return set(online)

    def has_pending(self, online: set[int]) -> bool:
        """Return whether a node that was asked in this round has not replied yet."""
        return bool(online & self._asked & set(self._pending_since) - self._resolved)

    def _may_ask(self, node: int) -> bool:
        due = max(self._retry_at.get(node, 0.0), self._pending_since.get(node, -math.inf) + QUERY_TIMEOUT)
        given_up = node not in self._asked and self._query_rounds[node] >= MAX_QUERY_ROUNDS
        return node not in self._resolved and not given_up and time.monotonic() >= due

    def _ask(self, nodes: list[int]) -> None:
        requests = [
            FlowerMessage(content=RecordDict(), message_type="query", dst_node_id=node, group_id="names", ttl=self._ttl)
            for node in nodes
        ]
        sent: list[str | None] = list(self._grid.push_messages(requests)) if requests else []
        self._query_rounds.update(set(nodes) - self._asked)
        self._asked |= set(nodes)
        for node, query in zip(nodes, sent or [None] * len(nodes), strict=True):
            if query is None:  # it could not be sent
                self._back_off(node)
                continue
            self._queries[query] = node
            self._pending_since[node] = time.monotonic()

    def _read_replies(self) -> None:
        for reply in self._grid.pull_messages(list(self._queries)) if self._queries else ():
            node = self._queries.pop(reply.metadata.reply_to_message_id)
            self._pending_since.pop(node, None)
            if reply.has_error():
                self._back_off(node)
                continue
            self._resolved.add(node)
            about = reply.content.config_records.get("about")
            name = "" if about is None else str(about.get("name", ""))
            if name in self._sites and name not in self.nodes:
                self.nodes[name] = node

    def _back_off(self, node: int) -> None:
        """Double the pause before a node is asked again."""
        self._pause[node] = min(LATER_PATIENCE, 2 * self._pause.get(node, POLL_SECONDS / 2))
        self._retry_at[node] = time.monotonic() + self._pause[node]


class FlowerExchange:
    """An exchange that delivers messages through Flower's grid, and waits for the replies until a deadline.

    Args:
        grid: Flower's grid.
        sites: the sites of the federation.
        deadline: seconds that a round waits for replies.
        patience: seconds that the first round waits for sites that are not online yet (default: the deadline). Later
            rounds wait for `LATER_PATIENCE` at most.
    """

    def __init__(self, grid: Grid, sites: Mapping[str, Site], deadline: float, patience: float | None = None) -> None:
        self._grid, self._deadline = grid, deadline
        self._patience = deadline if patience is None else patience
        self._directory = NodeDirectory(grid, sites, deadline)
        self._missed: set[str] = set()
        self._first_round = True

    def __call__(self, messages: Mapping[str, Message]) -> Iterator[Reply]:
        online = self._wait_for_sites(messages)
        nodes = self._directory.nodes
        reachable = {name: nodes[name] for name in messages if nodes.get(name) in online}
        names = {node: name for name, node in reachable.items()}
        requests = [self._request(messages[name], node) for name, node in reachable.items()]
        self._missed |= set(messages)
        for reply in self._grid.send_and_receive(requests, timeout=self._deadline) if requests else ():
            name = names.get(reply.metadata.src_node_id)
            if name is not None:
                self._missed.discard(name)
                yield name, _read_reply(reply)

    def _request(self, message: Message, node: int) -> FlowerMessage:
        content, ttl = to_records(message), self._deadline
        return FlowerMessage(
            content=content, message_type="train", dst_node_id=node, group_id=str(message.round), ttl=ttl
        )

    def _wait_for_sites(self, names: Mapping[str, Message]) -> set[int]:
        """Wait for sites that are offline, and for new nodes that may be one of them; return the nodes online.

        A site that missed its last round is not waited for.
        """
        patience = self._patience if self._first_round else min(LATER_PATIENCE, self._patience)
        until = time.monotonic() + patience
        self._directory.start_round()
        while True:
            online = self._directory.poll()
            offline = {name for name in names if self._directory.nodes.get(name) not in online}
            wait = offline - self._missed or (offline and self._directory.has_pending(online))
            if not wait or time.monotonic() >= until:
                self._first_round = False
                return online
            time.sleep(POLL_SECONDS)


def _read_reply(reply: FlowerMessage) -> Message | Refused:
    """Return the upload of a reply, or its refusal with one of the known reasons."""
    if reply.has_error():
        return Refused("error")
    refusal = reply.content.config_records.get(REFUSED)
    if refusal is not None:
        reason = str(refusal.get("reason"))
        return Refused(reason if reason in REASONS else "error")
    try:
        return to_message(reply.content)
    except Refused as refused:
        return refused


def run_server(federation: Path, out: Path, grid: Grid, deadline: float, patience: float | None = None) -> None:
    """Run the remaining rounds of a federation; a run that is in `out` is resumed.

    Args:
        federation: the agreed file.
        out: the run folder.
        grid: Flower's grid.
        deadline: seconds that a round waits for replies.
        patience: seconds that the first round waits for sites that are not online yet.
    """
    config, sites = read_federation(federation)
    set_threads(config.threads)
    source = with_declared_classes(config, load(config.data, config.data_dir))
    sizes = {name: site.records for name, site in sites.items()}
    public = source.train if source.public is None else source.public  # a server without x_public holds public records
    server = build_server(config, source, public, sizes)
    uses_public = server.strategy.public is not None or config.warm_start == "public"
    parts = Federation(server, {}, source, {}, len(public) if uses_public else 0)
    history = []
    if (out / "config.yaml").exists():
        folder: RunFolder = (saved := SavedRunFolder(out))
        history = saved.restore(config, parts)
    else:
        folder = RunFolder(out)
    folder.write("config.yaml", config.to_yaml().encode())  # some settings may have changed, such as more rounds
    exchange = UploadLog(FlowerExchange(grid, sites, deadline, patience), out / ANSWERED)
    exchange.restore_counts(server)
    run_remaining_rounds(config, parts, folder, history, False, exchange)


server_app = ServerApp()


@server_app.main()
def _serve(grid: Grid, context: Context) -> None:
    settings = context.run_config
    times = (float(settings[name]) for name in ("deadline", "patience"))
    run_server(Path(str(settings["federation"])), Path(str(settings["out"])), grid, *times)


# -- a site's side ---------------------------------------------------------------------------------

client_app = ClientApp()


@client_app.query()
def _name(request: FlowerMessage, context: Context) -> FlowerMessage:
    """Reply with the name of the site."""
    about = ConfigRecord({"name": str(context.node_config.get("name", ""))})
    return FlowerMessage(content=RecordDict({"about": about}), reply_to=request)


@client_app.train()
def _train(request: FlowerMessage, context: Context) -> FlowerMessage:
    """Run a round at a site. The text of an error stays at the site: it could quote a record."""
    try:
        content = to_records(_upload(to_message(request.content), context.node_config))
    except Exception as error:
        _log_error(error, context.node_config)
        content = RecordDict({REFUSED: ConfigRecord({"reason": refusal_for(error).reason})})
    return FlowerMessage(content=content, reply_to=request)


def _upload(message: Message, node_config: Mapping[str, Any]) -> Message:
    """Return the site's upload for a message of the server."""
    config, sites = read_federation(Path(str(node_config["federation"])))
    set_threads(config.threads)
    ledger, dataset = node_config.get("ledger"), node_config.get("data-id")
    return run_site_round(
        config, sites, str(node_config["name"]), str(node_config["data"]), Path(str(node_config["state"])), message,
        ledger=None if ledger is None else Path(str(ledger)), dataset=None if dataset is None else str(dataset),
    )  # fmt: skip


def _log_error(error: Exception, node_config: Mapping[str, Any]) -> None:
    """Append an error to the site's own log."""
    if "state" in node_config:
        state = Path(str(node_config["state"]))
        state.mkdir(parents=True, exist_ok=True)
        with (state / "errors.log").open("a") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {type(error).__name__}: {error}\n")
