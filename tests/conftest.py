"""Every test gets a ledger of its own: none may write into the ledger of whoever runs them."""

from __future__ import annotations

import signal

import pytest


@pytest.fixture(autouse=True)
def own_ledger(tmp_path_factory, monkeypatch):
    path = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
    monkeypatch.setenv("GNOMON_LEDGER", str(path))
    return path


@pytest.fixture(autouse=True, scope="session")
def interruptible():
    """Started in the background, a shell leaves Ctrl-C ignored; the tests of Ctrl-C need it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
