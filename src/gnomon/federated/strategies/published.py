"""The `Strategy` composition, and the published federated methods as one short function each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gnomon import validate
from gnomon.errors import SettingError
from gnomon.federated.aggregation import Aggregator, Mean, QFair
from gnomon.federated.private_mean import PrivateMean
from gnomon.federated.strategies.component import Component, LocalRound
from gnomon.federated.strategies.contrastive import Moon
from gnomon.federated.strategies.control_variates import ControlVariates
from gnomon.federated.strategies.fairness import LOSS, FairClipping, FairLearningRate, LossRelease
from gnomon.federated.strategies.proximal import BoundedUpdate, Proximal
from gnomon.federated.uploads import AllParameters, Coordinates, LargestEntries, Upload
from gnomon.methods import Method, dp_sgd, pcdp, pdp
from gnomon.subspaces import Basis, Held, PublicEigenspace, Subspace


@dataclass(frozen=True)
class Strategy:
    """A federated method as a composition.

    Args:
        name: the name in statements and reports.
        method: the local method of the clients. If it has a subspace, server and clients build one basis a round.
        upload: the format of an upload.
        aggregator: how the server combines the uploads.
        components: further behaviour on the server's and the clients' side.
        upload_subspace: a subspace for uploads alone, if the local method has none.

    >>> from gnomon.clipping import Automatic
    >>> Strategy("own", method=dp_sgd(clip=Automatic()), components=(Proximal(0.1),)).describe()
    'own: dp-sgd: gradient, automatic clipping; proximal; uploads all parameters; mean'
    """

    name: str
    method: Method = field(default_factory=dp_sgd)
    upload: Upload = field(default_factory=AllParameters)
    aggregator: Aggregator = field(default_factory=Mean)
    components: tuple[Component, ...] = ()
    upload_subspace: Subspace | None = None

    def __post_init__(self) -> None:
        if self.upload.needs_basis and self.round_subspace is None:
            raise SettingError.with_message(
                f"uploads in {self.upload.name} need a subspace: choose a local method with one, or set "
                "upload_subspace",
                name="upload",
                value=self.upload.name,
            )
        if self.private_mean is not None:
            for component in self.components:
                if component.upload_numbers or component.upload_templates({}):
                    raise SettingError.with_message(
                        "privacy for whole clients covers the change of the weights alone: leave out components that "
                        f"upload anything else ({component.name})",
                        name="components",
                        value=component.name,
                    )
        if self.aggregator.needs_losses and not any(LOSS in component.upload_numbers for component in self.components):
            raise SettingError.with_message(
                f"the aggregator {self.aggregator.name} needs the clients' losses: add the component LossRelease",
                name="aggregator",
                value=self.aggregator.name,
            )

    @property
    def round_subspace(self) -> Subspace | None:
        """The subspace whose basis server and clients build in every round, or None."""
        if self.upload_subspace is not None:
            return self.upload_subspace
        return None if self.method.subspace.whole_space else self.method.subspace

    @property
    def public(self) -> Any:
        """The public records from which the subspace is built, or None."""
        return getattr(self.round_subspace, "public", None)

    @property
    def private_mean(self) -> PrivateMean | None:
        """The aggregator if it protects whole clients, else None."""
        return self.aggregator if isinstance(self.aggregator, PrivateMean) else None

    def joint_bound(self, max_grad_norm: float) -> float:
        """Return the bound on everything that one record contributes to a step, the update and further releases."""
        for component in self.components:
            max_grad_norm = component.joint_bound(max_grad_norm)
        return max_grad_norm

    @property
    def step_factor(self) -> float:
        """The largest factor by which the components lengthen an honest local step."""
        factor = 1.0
        for component in self.components:
            factor *= component.step_factor
        return factor

    def client_method(self, basis: Basis | None, local_round: LocalRound) -> Method:
        """Return a client's local method for a round."""
        method = self.method
        if basis is not None and not method.subspace.whole_space:
            held = Held(basis, self.round_subspace or method.subspace, f"{method.subspace.name}, held for a round")
            method = dataclasses.replace(method, subspace=held)
        for component in self.components:
            method = component.configure_client(method, local_round)
        return method

    def describe(self) -> str:
        """Return one line for statements and listings."""
        components = "".join(f"{component.name}; " for component in self.components)
        return f"{self.name}: {self.method.describe()}; {components}uploads {self.upload.name}; {self.aggregator.name}"


def fedavg(local: Method | None = None) -> Strategy:
    """FedAvg (McMahan et al. 2017): local training, then the mean of the changes.

    >>> fedavg().upload.name
    'all parameters'
    """
    return Strategy("fedavg", local or dp_sgd())


def fedprox(mu: float = 0.01, local: Method | None = None) -> Strategy:
    """FedProx (Li et al. 2020): a proximal term towards the global weights, added after the noise.

    >>> fedprox(0.1).components
    (Proximal(mu=0.1),)
    """
    return Strategy("fedprox", local or dp_sgd(), components=(Proximal(mu),))


def scaffold(local: Method | None = None) -> Strategy:
    """SCAFFOLD, option II (Karimireddy et al. 2020): control variates from noisy updates.

    >>> scaffold().components
    (ControlVariates(),)
    """
    return Strategy("scaffold", local or dp_sgd(), components=(ControlVariates(),))


def moon(weight: float = 1.0, temperature: float = 0.5, local: Method | None = None) -> Strategy:
    """MOON (Li et al. 2021): a contrastive term in each record's loss, inside the clip.

    >>> moon().components
    (Moon(weight=1.0, temperature=0.5),)
    """
    return Strategy("moon", local or dp_sgd(), components=(Moon(weight, temperature),))


def fedlrs(mu: float = 0.01, limit: float = 1.0, fraction: float = 0.3, local: Method | None = None) -> Strategy:
    """FedLRS (Cheng et al. 2022): updates that are kept short and uploaded sparsely.

    The published method protects whole clients; here it protects records.

    >>> fedlrs().upload.name
    'largest 30%'
    """
    return Strategy("fedlrs", local or dp_sgd(), LargestEntries(fraction), components=(BoundedUpdate(mu, limit),))


def pfa(
    public: Any,
    rank: float = 100,
    per_tensor: bool = True,
    public_batch: int | None = None,
    local: Method | None = None,
) -> Strategy:
    """PFA (Liu et al. 2021), simplified as in the PCDP paper: projection for uploads only.

    >>> import torch
    >>> pfa((torch.zeros(4, 2), torch.zeros(4)), rank=2).upload.name
    'coordinates'
    """
    subspace = PublicEigenspace(public, rank, per_tensor, batch=public_batch)
    return Strategy("pfa", local or dp_sgd(), Coordinates(), upload_subspace=subspace)


def fedpdp(public: Any, rank: float = 100, per_tensor: bool = True, local: Method | None = None) -> Strategy:
    """FedPDP: PDP-SGD in the round's public subspace; clients upload k coordinates.

    >>> import torch
    >>> fedpdp((torch.zeros(4, 2), torch.zeros(4)), rank=2).method.route
    ClipThenProject()
    """
    return Strategy("fedpdp", local or pdp(public, rank, per_tensor=per_tensor), Coordinates())


def fedpcdp(public: Any, rank: float = 100, per_tensor: bool = True, local: Method | None = None) -> Strategy:
    """FedPCDP (Sha et al. 2023): PCDP-SGD in the round's public subspace; clients upload k coordinates.

    >>> import torch
    >>> fedpcdp((torch.zeros(4, 2), torch.zeros(4)), rank=2).method.route
    ProjectThenClip()
    """
    return Strategy("fedpcdp", local or pcdp(public, rank, per_tensor=per_tensor), Coordinates())


def fedfair(
    strength: float = 0.1, max_factor: float = 2.0, ratio: float = 2.5, local: Method | None = None
) -> Strategy:
    """FedFair (Ling et al. 2024): clients with a larger noisy loss use a larger learning rate.

    The published method is not private and uses the loss of the current batch; here it is the loss that the client
    released in the previous round.

    >>> fedfair().components[0].name
    'fair learning rate'
    """
    return Strategy(
        "fedfair", local or dp_sgd(), components=(FairLearningRate(strength, max_factor), LossRelease(ratio))
    )


def fedfdp(strength: float = 0.1, max_factor: float = 2.0, ratio: float = 2.5, local: Method | None = None) -> Strategy:
    """FedFDP (Ling et al. 2024): fair clipping relative to the noisy mean loss, with gradient and loss in one release.

    >>> fedfdp(0.01).components[0]
    FairClipping(strength=0.01, max_factor=2.0)
    """
    return Strategy("fedfdp", local or dp_sgd(), components=(FairClipping(strength, max_factor), LossRelease(ratio)))


def qffl(lr: float, q: float = 1.0, ratio: float = 2.5, local: Method | None = None) -> Strategy:
    """q-FFL (Li et al. 2020): clients with a larger noisy loss count more in the aggregate.

    The smoothness constant of the paper is set to `1 / lr`, with the clients' learning rate `lr`.

    >>> qffl(lr=0.1, q=0.5).aggregator
    QFair(q=0.5, smoothness=10.0, lr=1.0)
    """
    aggregator = QFair(q, 1 / validate.positive("lr", lr))
    return Strategy("q-ffl", local or dp_sgd(), aggregator=aggregator, components=(LossRelease(ratio),))


STRATEGIES: dict[str, Callable[..., Strategy]] = {
    "fedavg": fedavg,
    "fedprox": fedprox,
    "scaffold": scaffold,
    "moon": moon,
    "fedlrs": fedlrs,
    "pfa": pfa,
    "fedpdp": fedpdp,
    "fedpcdp": fedpcdp,
    "fedfair": fedfair,
    "fedfdp": fedfdp,
    "q-ffl": qffl,
}
"""The published strategies, by their names on the command line."""
