"""A site's SuperNode that runs the installed Gnomon and no other program, whatever app the server sends.

Flower hands every node the code of the app and runs it there with the node's rights, so whoever controls the server
would read the records without passing any door. A SuperNode starts those programs by name. Here it finds programs of
the site's own: `flwr-clientapp` is Flower's process around the installed client app, and every other kind of task ends
at once. No folder with Flower's programs is on its path, so if those of the site are gone, nothing runs in their place.
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
"""The versions whose client process is known. Another one may load apps in another way, and is refused."""
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""What keeps Flower from reaching the network by itself."""
PROGRAMS = "programs"
PROCESS = Path(__file__).with_name("client_process.py")
CLIENT = "flwr-clientapp"
SPAWNER = "flower-superexec"
"""Flower's own program that starts the others, by their names."""
OTHERS = ("flwr-serverapp", "flwr-simulation", "flwr-agentapp", "flwr-model", "flwr-connector")


def write_programs(state: Path, spawner: str = SPAWNER) -> Path:
    """The folder of all programs of Flower that a site's SuperNode finds, made anew. `spawner` is the path of Flower's.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     programs = write_programs(Path(place))
    ...     sorted(file.name for file in programs.iterdir())[:3]
    ['flower-superexec', 'flwr-agentapp', 'flwr-clientapp']
    """
    folder = state / PROGRAMS
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, mode=0o700)
    # by its path, without the package around it: whoever takes long to report loses the task
    ours = f'exec {shlex.quote(sys.executable)} -P {shlex.quote(str(PROCESS))} "$@"'
    lines = {CLIENT: ours, SPAWNER: f'exec {shlex.quote(spawner)} "$@"'}
    lines |= {name: f"echo '{name} is not run at a site' >&2; exit 1" for name in OTHERS}
    for name, line in lines.items():
        file = folder / name
        file.write_text(f"#!/bin/sh\n{line}\n")
        file.chmod(0o700)
    return folder


def supernode(
    *,
    superlink: str,
    root_certificates: Path,
    key: Path,
    node: Mapping[str, str],
    port: int | None = None,
) -> tuple[list[str], dict[str, str]]:
    """The command of a site's SuperNode, and its environment. `node` is what its client app reads.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     about = {"name": "north", "state": place}
    ...     words, environment = supernode(
    ...         superlink="localhost:8000", root_certificates=Path("ca.crt"), key=Path("north.node"), node=about)
    ...     Path(words[0]).name, environment["PATH"].startswith(str(Path(place) / "programs"))
    ('flower-supernode', True)
    """
    _known_flower()
    for name, value in node.items():
        if '"' in value or "\\" in value:
            raise SettingError(name, value, "a value without quotes and backslashes: Flower cannot be told it")
    places = [str(Path(sys.executable).parent), *os.environ.get("PATH", os.defpath).split(os.pathsep)]
    program, spawner = (shutil.which(name, path=os.pathsep.join(places)) for name in ("flower-supernode", SPAWNER))
    if program is None or spawner is None:
        raise SettingError("flower-supernode", None, "Flower beside Gnomon: pip install 'gnomon[federated]'")
    ours = write_programs(Path(node["state"]).absolute(), spawner)
    path = os.pathsep.join([str(ours), *(place for place in places if not _has_flower(place))])
    if shutil.which(CLIENT, path=path) != str(ours / CLIENT):
        allowed = "a folder from which programs may be run: its file system seems to be mounted noexec"
        raise SettingError("state", node["state"], allowed)
    words = [
        program, "--superlink", superlink, "--root-certificates", str(root_certificates),
        "--auth-supernode-private-key", str(key),
        "--node-config", " ".join(f'{name}="{value}"' for name, value in node.items()),
    ]  # fmt: skip
    words += [] if port is None else ["--port", str(port)]
    return words, {**os.environ, **QUIET, "PATH": path}


def _has_flower(place: str) -> bool:
    """Whether one of the programs that a site replaces is in a folder; an empty name is the current one."""
    return any((Path(place) / name).exists() for name in (CLIENT, SPAWNER, *OTHERS))


def _known_flower() -> None:
    try:
        found = version("flwr")
    except PackageNotFoundError:
        raise SettingError("flwr", None, "Flower beside Gnomon: pip install 'gnomon[federated]'") from None
    if not found.startswith(FLOWER):
        raise SettingError("flwr", found, f"version {FLOWER}*: how another one runs apps is not known here")
