"""The base class of strategy components, and the two views of a round that their hooks get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.optim import Optimizer

from gnomon.federated.message import Arrays, Message
from gnomon.federated.state import ClientState, ServerState
from gnomon.methods import Method


@dataclass
class LocalRound:
    """A client's view of a round. Everything in it is public, released, or the client's own state."""

    message: Message
    """The server's message."""
    model: nn.Module
    start: Arrays
    """The server's weights, from which the round starts."""
    state: ClientState
    optimizer: Optimizer
    steps: int
    """The private steps in the round."""
    bound: float
    """The clip bound C of a record's update."""
    lr_factor: float = 1.0
    """The factor of the learning rate in this round."""
    losses: list[float] = field(default_factory=list)
    """The noisy mean losses that the steps released."""
    end: Arrays = field(default_factory=dict)
    """The weights after the last step."""

    @property
    def lr(self) -> float:
        """The learning rate in this round."""
        return float(self.optimizer.param_groups[0]["lr"]) * self.lr_factor


@dataclass(frozen=True)
class RoundOutcome:
    """The server's view of the end of a round."""

    accepted: Mapping[str, Message]
    """The accepted uploads, by client."""
    weights: Mapping[str, float]
    """The fixed weight of each client whose upload was accepted."""
    clients: int
    """The number of clients in the federation, whether they took part or not."""
    losses: dict[str, float]
    """The loss of each client whose upload was accepted, for the aggregator. A component may set it."""


class Component:
    """A part of a strategy, which acts through hooks on the server's and on the client's side.

    Every hook has a default that does nothing.

    >>> Component().joint_bound(1.0)
    1.0
    """

    name = ""
    """The component's name in statements and reports."""
    upload_numbers: tuple[str, ...] = ()
    """The numbers that the component adds to an upload."""
    step_factor = 1.0
    """The largest factor by which the component lengthens an honest local step."""

    # -- both sides --------------------------------------------------------------------------------

    def check_optimizer(self, lr: float, momentum: float) -> None:
        """Check that the component works with the local learning rate and momentum.

        Raises:
            SettingError: it does not.
        """

    def joint_bound(self, bound: float) -> float:
        """Return the bound on everything that one record contributes to a step, if its update is clipped to `bound`."""
        return bound

    # -- the server's side -------------------------------------------------------------------------

    def server_message(self, state: ServerState, weights: Mapping[str, Tensor]) -> Message:
        """Return what the component adds to the server's message. The round of the result is not used."""
        return Message(0)

    def upload_templates(self, weights: Mapping[str, Tensor]) -> dict[str, Arrays]:
        """Return templates, by group, of the arrays that the component adds to an upload."""
        return {}

    def upload_norm_limits(self, step_norm: float) -> dict[str, float]:
        """Return the largest norm of each added group of arrays.

        Args:
            step_norm: the largest norm of a step that the client can honestly release.
        """
        return {}

    def extra_step_norm(self, message: Message) -> float:
        """Return the norm by which the server's message can lengthen each local step."""
        return 0.0

    def server_update(self, state: ServerState, outcome: RoundOutcome) -> None:
        """Update the server's state from the accepted uploads."""

    # -- the client's side -------------------------------------------------------------------------

    def configure_client(self, method: Method, local_round: LocalRound) -> Method:
        """Return the local method of the round, based on `method`."""
        return method

    def client_upload(self, local_round: LocalRound) -> Message:
        """Return what the component adds to the upload. The round of the result is not used."""
        return Message(0)
