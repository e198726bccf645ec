"""`gnomon site`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from gnomon.errors import SettingError


def add_site(commands: Any) -> None:
    parser = commands.add_parser(
        "site",
        help="take part in a federation with this machine's records",
        description="Start a Flower SuperNode that runs the installed Gnomon and nothing else: code that the server "
        "sends is not run. Settings, records and ledger are checked before it starts. Ctrl-C ends it. See "
        "docs/federated.md.",
        epilog="example:\n"
        "  gnomon site --superlink server.example.org:443 --root-certificates ca.crt --key north.node --name north \\\n"
        "      --data npz:/data/north.npz --data-id patients --federation /etc/gnomon/federation.yaml \\\n"
        "      --state /var/lib/gnomon/north",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_site)
    for flag, metavar, text in (
        ("superlink", "HOST:PORT", "where the server is"),
        ("root-certificates", "FILE", "the certificate that the server's is checked against"),
        ("key", "FILE", "the site's private key; its public part is registered at the server"),
        ("name", "NAME", "this site's name in the agreed file"),
        ("data", "npz:FILE", "the site's records"),
        ("federation", "FILE", "the site's copy of the agreed file"),
        ("state", "FOLDER", "what must survive restarts, beside the ledger; one for each federation"),
    ):
        parser.add_argument(f"--{flag}", required=True, metavar=metavar, help=text)
    parser.add_argument(
        "--ledger", metavar="FILE", help="where the site pays (default: GNOMON_LEDGER, or a file of the user)"
    )
    parser.add_argument(
        "--data-id",
        metavar="NAME",
        help="the name of the site's records in its ledger, the same one in all work with them (needed)",
    )
    parser.add_argument("--port", type=int, metavar="N", help="of the node's own programs, on this machine alone")


def _site(args: argparse.Namespace) -> int:
    from gnomon.federated.deployment.site import check_site
    from gnomon.federated.deployment.supernode import supernode_command
    from gnomon.ledger import required_path

    files = {name: Path(getattr(args, name)) for name in ("root_certificates", "key", "federation")}
    for name, file in files.items():
        if not file.is_file():
            raise SettingError(name.replace("_", "-"), str(file), "a file that exists")
    data = _absolute(args.data)
    check_site(files["federation"], args.name, data, args.data_id)
    node_config = {
        "name": args.name,
        "data": data,
        "federation": str(files["federation"].absolute()),
        "state": str(Path(args.state).expanduser().absolute()),
        "ledger": str(required_path(args.ledger).absolute()),
        "data-id": args.data_id,
    }
    command, environment = supernode_command(
        superlink=args.superlink,
        root_certificates=files["root_certificates"],
        key=files["key"],
        node_config=node_config,
        port=args.port,
    )
    print(
        f"site {args.name}: what the server sends is not run; "
        f"state {node_config['state']}, ledger {node_config['ledger']}",
        flush=True,
    )
    os.execve(command[0], command, environment)
    return 1  # not reached: this process is the SuperNode now


def _absolute(data: str) -> str:
    file = Path(data.removeprefix("npz:")).expanduser()
    return f"npz:{file.absolute()}" if file.is_file() else data
