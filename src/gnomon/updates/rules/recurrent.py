"""The rule of recurrent layers (RNN, LSTM, GRU), which unrolls them over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gnomon.errors import SettingError
from gnomon.updates.leaves import Leaf
from gnomon.updates.rules.linear import affine, affine_shift
from gnomon.updates.rules.registry import Tap, forward_rule

Cell = Callable[[nn.RNNBase, Tensor, Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]
"""(module, gates from the input, gates from the hidden state, state) -> next state, whose first part is the output."""


def _lstm(module: nn.RNNBase, gi: Tensor, gh: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    i, f, g, o = (gi + gh).chunk(4, -1)
    cell = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def _gru(module: nn.RNNBase, gi: Tensor, gh: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    (ri, zi, ni), (rh, zh, nh) = gi.chunk(3, -1), gh.chunk(3, -1)
    update = (zi + zh).sigmoid()
    return ((1 - update) * (ni + (ri + rh).sigmoid() * nh).tanh() + update * state[0],)


def _plain(module: nn.RNNBase, gi: Tensor, gh: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return ((gi + gh).relu() if module.mode == "RNN_RELU" else (gi + gh).tanh(),)


_CELLS: dict[str, Cell] = {"LSTM": _lstm, "GRU": _gru, "RNN_TANH": _plain, "RNN_RELU": _plain}


@forward_rule(nn.LSTM, nn.GRU, nn.RNN)
def recurrent(module: nn.RNNBase, tap: Tap, x: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
    """Compute the same output as `module.forward` for padded sequences, with every linear map marked."""
    if not isinstance(x, Tensor):
        raise SettingError.with_message(
            f"{type(module).__name__} got a {type(x).__name__}; use a tensor of padded sequences"
        )
    if x.dim() != 3:
        raise SettingError.with_message(
            f"{type(module).__name__} got inputs with {x.dim()} dimensions; use three, one of them the batch"
        )
    x = x.transpose(0, 1) if module.batch_first else x  # (T, B, in)
    initial = _initial_state(module, x, hx)
    directions = 2 if module.bidirectional else 1
    last: list[tuple[Tensor, ...]] = []
    for layer in range(module.num_layers):
        outputs = []
        for direction in range(directions):
            state = tuple(part[layer * directions + direction] for part in initial)
            output, state = _run(module, tap, x, state, layer, direction)
            outputs.append(output)
            last.append(state)
        x = torch.cat(outputs, -1)
        if layer + 1 < module.num_layers:
            x = F.dropout(x, module.dropout, module.training)
    final = tuple(torch.stack(parts) for parts in zip(*last, strict=True))
    output = x.transpose(0, 1) if module.batch_first else x
    return output, final if module.mode == "LSTM" else final[0]


def _initial_state(module: nn.RNNBase, x: Tensor, hx: Any) -> tuple[Tensor, ...]:
    """Return the hidden state, and for an LSTM the cell state, before the first time step."""
    if hx is not None:
        return tuple(hx) if module.mode == "LSTM" else (hx,)
    count = module.num_layers * (2 if module.bidirectional else 1)
    hidden = x.new_zeros(count, x.shape[1], module.proj_size or module.hidden_size)
    if module.mode != "LSTM":
        return (hidden,)
    return hidden, x.new_zeros(count, x.shape[1], module.hidden_size)


def _run(
    module: nn.RNNBase, tap: Tap, x: Tensor, state: tuple[Tensor, ...], layer: int, direction: int
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run one layer in one direction over the whole sequence."""
    suffix = f"l{layer}" + ("_reverse" if direction else "")
    gates = _linear(module, tap, x, f"weight_ih_{suffix}", f"bias_ih_{suffix}")
    steps = range(len(x))
    outputs: list[Tensor] = []
    for t in reversed(steps) if direction else steps:
        hidden = _linear(module, tap, state[0], f"weight_hh_{suffix}", f"bias_hh_{suffix}")
        state = _CELLS[module.mode](module, gates[t], hidden, state)
        if module.proj_size:
            state = (_linear(module, tap, state[0], f"weight_hr_{suffix}", ""), *state[1:])
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if direction else outputs), state


def _linear(module: nn.RNNBase, tap: Tap, x: Tensor, weight: str, bias: str) -> Tensor:
    """Apply a linear map, and mark the use of its parameters."""
    matrix = getattr(module, weight)
    output = F.linear(x, matrix, getattr(module, bias, None) if bias else None)

    def build(inputs: Tensor, grad: Tensor) -> Mapping[str, Leaf]:
        return affine(inputs, grad, weight, bias, matrix.shape)

    return tap(x, output, build, lambda inputs, drift: affine_shift(inputs, drift, weight, bias))
