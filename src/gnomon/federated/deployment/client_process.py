"""Flower's client process, with the installed Gnomon in place of the app that the server sent.

A site's SuperNode starts this program for each message. The app that was sent is neither unpacked nor loaded. If
Flower's client process does not have the functions that are replaced here, nothing is run.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

os.environ.update(
    FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1", FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION="1"
)  # before any module of Flower is imported


def run_installed() -> None:
    """Replace the functions with which Flower's client process unpacks and loads an app, and run the process."""
    process = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    from flwr.supernode.cli.flwr_clientapp import flwr_clientapp  # noqa: PLC0415  # after the module that it imports

    replacements = {
        "install_from_fab": do_nothing,
        "install_app_dependencies": do_nothing,
        "get_project_dir": do_nothing,
        "get_load_client_app_fn": lambda **_: installed_client_app,
    }
    for name, function in replacements.items():
        if not hasattr(process, name):
            raise SystemExit(
                f"Flower's client process has no {name}, so it might run the app that the server sent: nothing is run"
            )
        setattr(process, name, function)
    sys.argv[0] = "flwr-clientapp"
    flwr_clientapp()


def do_nothing(*_: Any, **__: Any) -> None:
    """Stand in for the functions that would unpack or install the app that was sent."""


def installed_client_app(*_: Any) -> Any:
    """Return the client app of the installed Gnomon."""
    from gnomon.federated.deployment.flower import client_app  # noqa: PLC0415  # slow: the task is reported first

    return client_app


if __name__ == "__main__":
    run_installed()
