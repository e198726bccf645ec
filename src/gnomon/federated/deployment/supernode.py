"""A site's SuperNode, which runs the installed Gnomon and no other program, whatever app the server sends.

Flower sends the code of the app to every node and runs it there with the node's rights, so that whoever controls the
server could read the records without any release. A SuperNode starts these programs by name. Here it finds the site's
own programs under those names: `flwr-clientapp` is Flower's client process with the installed client app, and every
other kind of task ends at once. No folder with Flower's programs is on its path, so if the site's programs are deleted,
nothing runs in their place.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gnomon.errors import SettingError

FLOWER = "1.41."
"""The Flower versions whose client process is known. Others may load apps in another way, and are refused."""
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Environment variables that keep Flower from using the network on its own account."""
PROGRAMS = "programs"
"""The folder of the site's programs, in its state folder."""
CLIENT_PROCESS = Path(__file__).with_name("client_process.py")
CLIENT = "flwr-clientapp"
SPAWNER = "flower-superexec"
"""Flower's program that starts the other programs by their names."""
OTHERS = ("flwr-serverapp", "flwr-simulation", "flwr-agentapp", "flwr-model", "flwr-connector")
"""Flower's programs for other kinds of tasks."""
INSTALL = "pip install 'gnomon[federated]'"


def write_programs(state: Path, spawner: str = SPAWNER) -> Path:
    """Write the programs that a site's SuperNode finds in place of Flower's, and return their folder.

    Args:
        state: the site's state folder.
        spawner: the path of Flower's own `flower-superexec`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as state:
    ...     programs = write_programs(Path(state))
    ...     sorted(file.name for file in programs.iterdir())[:3]
    ['flower-superexec', 'flwr-agentapp', 'flwr-clientapp']
    """
    folder = state / PROGRAMS
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, mode=0o700)
    # run by its path, without importing the package: a process that reports late loses its task
    client = f'exec {shlex.quote(sys.executable)} -P {shlex.quote(str(CLIENT_PROCESS))} "$@"'
    lines = {CLIENT: client, SPAWNER: f'exec {shlex.quote(spawner)} "$@"'}
    lines |= {name: f"echo '{name} is not run at a site' >&2; exit 1" for name in OTHERS}
    for name, line in lines.items():
        file = folder / name
        file.write_text(f"#!/bin/sh\n{line}\n")
        file.chmod(0o700)
    return folder


def supernode_command(
    *,
    superlink: str,
    root_certificates: Path,
    key: Path,
    node_config: Mapping[str, str],
    port: int | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment of a site's SuperNode.

    Args:
        superlink: the server's address, as `host:port`.
        root_certificates: the certificate against which the server's is checked.
        key: the site's private key.
        node_config: the settings that the client app reads; `state` is the site's state folder.
        port: the port of the node's own programs, on this machine alone.

    Raises:
        SettingError: Flower is missing or its version is unknown, a setting cannot be passed to Flower, or no program
            can be run from the state folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as state:
    ...     command, environment = supernode_command(superlink="localhost:8000", root_certificates=Path("ca.crt"),
    ...         key=Path("north.node"), node_config={"name": "north", "state": state})
    ...     Path(command[0]).name, environment["PATH"].startswith(str(Path(state) / "programs"))
    ('flower-supernode', True)
    """
    _check_flower_version()
    for name, value in node_config.items():
        if '"' in value or "\\" in value:
            raise SettingError(name, value, "a value without quotes and backslashes, which Flower cannot pass on")
    search = [str(Path(sys.executable).parent), *os.environ.get("PATH", os.defpath).split(os.pathsep)]
    program, spawner = (shutil.which(name, path=os.pathsep.join(search)) for name in ("flower-supernode", SPAWNER))
    if program is None or spawner is None:
        raise SettingError.with_message(f"flower-supernode was not found: run {INSTALL}", name="flower-supernode")
    programs = write_programs(Path(node_config["state"]).absolute(), spawner)
    path = os.pathsep.join([str(programs), *(folder for folder in search if not _has_flower(folder))])
    if shutil.which(CLIENT, path=path) != str(programs / CLIENT):
        raise SettingError(
            "state",
            node_config["state"],
            "a folder from which programs can be run; its file system seems to be mounted with noexec",
        )
    command = [
        program, "--superlink", superlink, "--root-certificates", str(root_certificates),
        "--auth-supernode-private-key", str(key),
        "--node-config", " ".join(f'{name}="{value}"' for name, value in node_config.items()),
    ]  # fmt: skip
    command += [] if port is None else ["--port", str(port)]
    return command, {**os.environ, **QUIET, "PATH": path}


def _has_flower(folder: str) -> bool:
    """Return whether a folder has one of the programs that a site replaces; an empty name is the current folder."""
    return any((Path(folder) / name).exists() for name in (CLIENT, SPAWNER, *OTHERS))


def _check_flower_version() -> None:
    try:
        installed = version("flwr")
    except PackageNotFoundError:
        raise SettingError.with_message(f"Flower is not installed: run {INSTALL}", name="flwr") from None
    if not installed.startswith(FLOWER):
        raise SettingError("flwr", installed, f"version {FLOWER}*, whose client process is known: run {INSTALL}")
