"""Every test gets a ledger of its own: none may write into the ledger of whoever runs them."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def own_ledger(tmp_path_factory, monkeypatch):
    path = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
    monkeypatch.setenv("GNOMON_LEDGER", str(path))
    return path
