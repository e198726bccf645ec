"""The state of server and clients survives its file, whatever characters the names in it have."""

from __future__ import annotations

import pytest
import torch

from gnomon.errors import DataError
from gnomon.federated import ClientState, ServerState
from gnomon.federated.state import load_tree, save_tree

ODD = 'a/b|c".0 [1]'


def test_names_with_any_characters_stay_apart():
    state = ServerState(
        round=2,
        federation=2**48 - 1,
        uploads_received={ODD: 3, "a": 1},
        clients_with_public_records={ODD},
        arrays={ODD: {ODD: torch.ones(2)}, "a/b": {"w": torch.zeros(1)}, "a": {"b/w": torch.full((1,), 5.0)}},
        client_arrays={"control": {ODD: {"0.weight": torch.ones(2, 3)}, "other": {"0.weight": torch.zeros(2, 3)}}},
        numbers={"loss": 0.1},
    )
    back = ServerState.from_tree(load_tree(save_tree(state.to_tree())))
    assert (back.round, back.federation, back.numbers) == (2, 2**48 - 1, {"loss": 0.1})
    assert (back.uploads_received, back.clients_with_public_records) == ({ODD: 3, "a": 1}, {ODD})
    assert torch.equal(back.arrays[ODD][ODD], torch.ones(2))
    assert (back.arrays["a/b"]["w"].item(), back.arrays["a"]["b/w"].item()) == (0.0, 5.0)
    assert list(back.client_arrays["control"]) == [ODD, "other"], "sums over clients keep their order"
    assert back.client_arrays["control"][ODD]["0.weight"].shape == (2, 3)


def test_a_new_state_survives_too():
    for state in (ClientState(), ServerState()):
        assert type(state).from_tree(load_tree(save_tree(state.to_tree()))) == state


@pytest.mark.parametrize("content", [b"", b"nothing", save_tree({"a": torch.ones(1)})[:-1]])
def test_a_damaged_file_is_named(content):
    with pytest.raises(DataError, match="the state file cannot be read"):
        load_tree(content)
