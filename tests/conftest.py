"""Fixtures of all tests: each has its own ledger, and no test may connect to another machine."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

SLOW = tuple(
    line for line in (Path(__file__).parent / "slow.txt").read_text().splitlines() if line and not line.startswith("#")
)
"""Modules and tests that `make quick` leaves out, as prefixes of node ids below `tests/`."""


def pytest_collection_modifyitems(items):
    """Mark the tests that `slow.txt` names."""
    for item in items:
        name = item.nodeid.removeprefix("tests/").partition("[")[0]
        if any(name == line or name.startswith(f"{line}::") for line in SLOW):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def own_ledger(tmp_path_factory, monkeypatch):
    """Give each test a ledger of its own."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
    monkeypatch.setenv("GNOMON_LEDGER", str(path))
    return path


@pytest.fixture(autouse=True, scope="session")
def interruptible():
    """Restore the handling of Ctrl-C, which a shell disables for background jobs and some tests need."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def loopback_alone():
    """Fail a test that connects to an address outside this machine."""
    plain = socket.socket.connect

    def connect(self, address):
        host = address[0] if isinstance(address, tuple) else "localhost"  # the path of a Unix socket
        if host not in ("localhost", "::1") and not str(host).startswith("127."):
            pytest.fail(f"a test connects to {host}")
        return plain(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", connect)
        yield
