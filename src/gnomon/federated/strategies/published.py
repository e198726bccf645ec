"""The published federated methods, one short function each: local method, upload, aggregation, and components."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gnomon import validate
from gnomon.errors import SettingError
from gnomon.federated.aggregation import Aggregate, Mean, QFair
from gnomon.federated.private_mean import PrivateMean
from gnomon.federated.strategies.component import Component, LocalRound
from gnomon.federated.strategies.control_variates import Controls
from gnomon.federated.strategies.fairness import FairClip, FairPace, Losses
from gnomon.federated.strategies.moon import Moon
from gnomon.federated.strategies.proximal import Blur, Prox
from gnomon.federated.uploads import Coordinates, Largest, Upload, Whole
from gnomon.methods import Method, dp_sgd, pcdp, pdp
from gnomon.subspaces import Ambient, Basis, Held, PublicEigenspace, Subspace


@dataclass(frozen=True)
class Strategy:
    """A composition: the local method, what is uploaded, how it is put together, and what goes along.

    A local method with a subspace has one basis a round, made by the server; `subspace` gives one for uploads alone.

    >>> from gnomon.clipping import Automatic
    >>> Strategy("own", method=dp_sgd(clip=Automatic()), components=(Prox(0.1),)).describe()
    'own: dp-sgd: gradient, automatic clipping; proximal; uploads all parameters; mean'
    """

    name: str
    method: Method = field(default_factory=dp_sgd)
    upload: Upload = field(default_factory=Whole)
    aggregate: Aggregate = field(default_factory=Mean)
    components: tuple[Component, ...] = ()
    subspace: Subspace | None = None

    def __post_init__(self) -> None:
        if isinstance(self.upload, Coordinates) and self.space is None:
            raise SettingError("upload", "coordinates", "a method or a strategy with a subspace")
        if isinstance(self.aggregate, PrivateMean) and any(p.numbers or p.uploads({}) for p in self.components):
            named = ", ".join(component.name for component in self.components)
            raise SettingError("components", named, "none that upload anything else to privacy for whole clients")
        if isinstance(self.aggregate, QFair) and not any(
            isinstance(component, Losses) for component in self.components
        ):
            raise SettingError("aggregate", self.aggregate.name, "the component Losses as well: it needs losses")

    @property
    def space(self) -> Subspace | None:
        """The subspace of a round, or None."""
        if self.subspace is not None:
            return self.subspace
        return None if isinstance(self.method.subspace, Ambient) else self.method.subspace

    @property
    def public(self) -> Any:
        """The public records that the subspace is made of, or None."""
        return None if self.space is None else self.space.public

    def bound(self, max_grad_norm: float) -> float:
        """What one record can move in one step, with everything that is released."""
        for component in self.components:
            max_grad_norm = component.bound(max_grad_norm)
        return max_grad_norm

    @property
    def stretch(self) -> float:
        """By how much the components can lengthen a local step."""
        whole = 1.0
        for component in self.components:
            whole *= component.stretch
        return whole

    def local(self, basis: Basis | None, local_round: LocalRound) -> Method:
        """The local method of a round."""
        method = self.method
        if basis is not None and not isinstance(method.subspace, Ambient):
            held = Held(basis, self.space or method.subspace, f"{method.subspace.name}, held for a round")
            method = dataclasses.replace(method, subspace=held)
        for component in self.components:
            method = component.before(method, local_round)
        return method

    def describe(self) -> str:
        """One line for statements and listings."""
        named = "".join(f"{component.name}; " for component in self.components)
        return f"{self.name}: {self.method.describe()}; {named}uploads {self.upload.name}; {self.aggregate.name}"


def fedavg(local: Method | None = None) -> Strategy:
    """FedAvg (McMahan et al. 2017): local training, then the mean.

    >>> fedavg().upload.name
    'all parameters'
    """
    return Strategy("fedavg", local or dp_sgd())


def fedprox(mu: float = 0.01, local: Method | None = None) -> Strategy:
    """FedProx (Li et al. 2020): a pull towards the global weights, after the noise.

    >>> fedprox(0.1).components
    (Prox(mu=0.1),)
    """
    return Strategy("fedprox", local or dp_sgd(), components=(Prox(mu),))


def scaffold(local: Method | None = None) -> Strategy:
    """SCAFFOLD, option II (Karimireddy et al. 2020): control variates made of noisy updates.

    >>> scaffold().components
    (Controls(),)
    """
    return Strategy("scaffold", local or dp_sgd(), components=(Controls(),))


def moon(weight: float = 1.0, temperature: float = 0.5, local: Method | None = None) -> Strategy:
    """MOON (Li et al. 2021): a contrastive term in each record's loss, inside the clip.

    >>> moon().components
    (Moon(weight=1.0, temperature=0.5),)
    """
    return Strategy("moon", local or dp_sgd(), components=(Moon(weight, temperature),))


def fedlrs(mu: float = 0.01, limit: float = 1.0, fraction: float = 0.3, local: Method | None = None) -> Strategy:
    """FedLRS (Cheng et al. 2022): updates kept short, and sparse. Published for whole clients, here for records.

    >>> fedlrs().upload.name
    'largest 30%'
    """
    return Strategy("fedlrs", local or dp_sgd(), Largest(fraction), components=(Blur(mu, limit),))


def pfa(
    public: Any,
    rank: float = 100,
    per_tensor: bool = True,
    public_batch: int | None = None,
    local: Method | None = None,
) -> Strategy:
    """PFA (Liu et al. 2021), simplified as in the PCDP paper: projection only when communicating.

    >>> import torch
    >>> pfa((torch.zeros(4, 2), torch.zeros(4)), rank=2).upload.name
    'coordinates'
    """
    space = PublicEigenspace(public, rank, per_tensor, batch=public_batch)
    return Strategy("pfa", local or dp_sgd(), Coordinates(), subspace=space)


def fedpdp(public: Any, rank: float = 100, per_tensor: bool = True, local: Method | None = None) -> Strategy:
    """FedPDP: PDP-SGD in the round's public subspace, k coordinates uploaded.

    >>> import torch
    >>> fedpdp((torch.zeros(4, 2), torch.zeros(4)), rank=2).method.route
    ClipThenProject()
    """
    return Strategy("fedpdp", local or pdp(public, rank, per_tensor=per_tensor), Coordinates())


def fedpcdp(public: Any, rank: float = 100, per_tensor: bool = True, local: Method | None = None) -> Strategy:
    """FedPCDP (Sha et al. 2023): PCDP-SGD in the round's public subspace, k coordinates uploaded.

    >>> import torch
    >>> fedpcdp((torch.zeros(4, 2), torch.zeros(4)), rank=2).method.route
    ProjectThenClip()
    """
    return Strategy("fedpcdp", local or pcdp(public, rank, per_tensor=per_tensor), Coordinates())


def fedfair(strength: float = 0.1, most: float = 2.0, ratio: float = 2.5, local: Method | None = None) -> Strategy:
    """FedFair (Ling et al. 2024): clients with a larger loss take longer steps; losses are released with noise.

    The published method has no privacy and uses the batch's own loss; here it is the loss released in the round before.

    >>> fedfair().components[0].name
    'fair pace'
    """
    return Strategy("fedfair", local or dp_sgd(), components=(FairPace(strength, most), Losses(ratio)))


def fedfdp(strength: float = 0.1, most: float = 2.0, ratio: float = 2.5, local: Method | None = None) -> Strategy:
    """FedFDP (Ling et al. 2024): fair clipping against the noisy mean loss, gradient and loss in one release.

    >>> fedfdp(0.01).components[0]
    FairClip(strength=0.01, most=2.0)
    """
    return Strategy("fedfdp", local or dp_sgd(), components=(FairClip(strength, most), Losses(ratio)))


def qffl(lr: float, q: float = 1.0, ratio: float = 2.5, local: Method | None = None) -> Strategy:
    """q-FFL (Li et al. 2020): clients with a larger loss pull harder; losses are released with noise.

    The smoothness constant of the paper's step is one over the clients' learning rate `lr`.

    >>> qffl(lr=0.1, q=0.5).aggregate
    QFair(q=0.5, smoothness=10.0, lr=1.0)
    """
    aggregate = QFair(q, 1 / validate.positive("lr", lr))
    return Strategy("q-ffl", local or dp_sgd(), aggregate=aggregate, components=(Losses(ratio),))


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
"""The strategies by the name that the command line uses."""
