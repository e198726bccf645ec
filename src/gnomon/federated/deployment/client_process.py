"""Flower's process of a client app, with the installed Gnomon in the place of the app that was sent.

A program of its own, started by the site's SuperNode for each message. What was sent is neither unpacked nor loaded. If
Flower's process is not the one that is known here, nothing is run.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

os.environ.update(
    FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1", FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION="1"
)  # before anything of Flower is imported


def run_installed() -> None:
    """Take the places where Flower's process unpacks and loads an app, and run it."""
    process = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    from flwr.supernode.cli.flwr_clientapp import flwr_clientapp  # noqa: PLC0415  # after its module is known

    instead = {
        "install_from_fab": nothing,
        "install_app_dependencies": nothing,
        "get_project_dir": nothing,
        "get_load_client_app_fn": lambda **_: installed,
    }
    for name, function in instead.items():
        if not hasattr(process, name):
            raise SystemExit(f"Flower's client process has no {name}: it may run what was sent, so nothing is run")
        setattr(process, name, function)
    sys.argv[0] = "flwr-clientapp"
    flwr_clientapp()


def nothing(*_: Any, **__: Any) -> None:
    """Leaves what was sent where it is."""


def installed(*_: Any) -> Any:
    """The client app of the installed Gnomon."""
    from gnomon.federated.deployment.flower import client_app  # noqa: PLC0415  # heavy: first the task is reported

    return client_app


if __name__ == "__main__":
    run_installed()
