"""The command `gnomon site`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from gnomon.errors import SettingError


def add_command(commands: Any) -> None:
    """Add the command to the parser of all commands."""
    parser = commands.add_parser(
        "site",
        help="join a federation with the records of this machine",
        description="Start a Flower SuperNode that runs the installed Gnomon only: code that the server sends is never "
        "run. Settings, records and ledger are checked before it starts. Ctrl-C ends it. See docs/federated.md.",
        epilog="example:\n"
        "  gnomon site --superlink server.example.org:443 --root-certificates ca.crt --key north.node --name north \\\n"
        "      --data npz:/data/north.npz --data-id patients --federation /etc/gnomon/federation.yaml \\\n"
        "      --state /var/lib/gnomon/north",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_site)
    for flag, metavar, text in (
        ("superlink", "HOST:PORT", "address of the server"),
        ("root-certificates", "FILE", "root certificate that verifies the server's certificate"),
        ("key", "FILE", "private key of the site; its public key is registered at the server"),
        ("name", "NAME", "name of the site in the federation file"),
        ("data", "npz:FILE", "records of the site"),
        ("federation", "FILE", "the site's copy of the federation file that all parties agreed on"),
        ("state", "FOLDER", "folder of the state that must survive restarts, beside the ledger; one per federation"),
    ):
        parser.add_argument(f"--{flag}", required=True, metavar=metavar, help=text)
    parser.add_argument(
        "--ledger",
        metavar="FILE",
        help="ledger of the site (default: GNOMON_LEDGER, or a file in the user's data folder)",
    )
    parser.add_argument(
        "--data-id",
        metavar="NAME",
        help="name of the site's records in its ledger; use the same name for all work with them (required)",
    )
    parser.add_argument("--port", type=int, metavar="N", help="local port for the processes of the node")


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
        f"site {args.name}: code that the server sends is never run; "
        f"state {node_config['state']}, ledger {node_config['ledger']}",
        flush=True,
    )
    os.execve(command[0], command, environment)
    return 1  # not reached: execve has replaced this process by the SuperNode


def _absolute(data: str) -> str:
    """Return the data with an absolute path, because the SuperNode may run in another folder."""
    file = Path(data.removeprefix("npz:")).expanduser()
    return f"npz:{file.absolute()}" if file.is_file() else data
