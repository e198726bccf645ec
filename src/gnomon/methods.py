"""The published methods, one function each: which update, which subspace, which clip rule.

A method is data. A combination that nobody has published works because the stages compose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from torch import Tensor, nn

from gnomon import validate
from gnomon.clipping import ClipRule, EmbeddingAndResidual, Flat, UpdateAndLoss
from gnomon.subspaces import Ambient, BesideLoss, Embedding, PublicEigenspace, RandomMask, RandomProjection, Subspace
from gnomon.updates import Loss, Updates, gradients, local_sgd
from gnomon.updates.drift import Descent

Update = Callable[[nn.Module, Loss, Any, Any], Updates]
"""(model, loss, inputs, targets) -> what each sample would change"""


class Term(Protocol):
    """An addition to the released gradient that reads no record: post-processing, at no cost in privacy."""

    @property
    def name(self) -> str:
        """For statements and logs."""

    def __call__(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """What to add, by parameter, at released weights."""


@dataclass(frozen=True)
class LocalSteps:
    """An update: how far a sample moves the model in some steps of its own.

    >>> LocalSteps(10, 0.025)
    LocalSteps(steps=10, lr=0.025, momentum=0.0)
    """

    steps: int = 10
    lr: float = 0.025
    momentum: float = 0.0

    displaces = True
    """It says where to go, not how steep it is: an optimizer gets its negative."""

    def __post_init__(self) -> None:
        Descent(self.steps, self.lr, self.momentum)

    def __call__(self, model: nn.Module, loss: Loss, inputs: Any, targets: Any) -> Updates:
        return local_sgd(model, loss, inputs, targets, steps=self.steps, lr=self.lr, momentum=self.momentum)

    @property
    def name(self) -> str:
        momentum = f", momentum {self.momentum:g}" if self.momentum else ""
        return f"{self.steps} local steps of {self.lr:g}{momentum}"


@dataclass(frozen=True)
class Method:
    """A composition of stages.

    `project="before"`: each update is seen in the subspace, clipped there, and noised there. `"after"`: updates
    are clipped and noised in all parameters, and the released sum is projected. `pre_noise` adds normal noise of that
    standard deviation to every coordinate of every sample before it is clipped (Chen et al. 2020), which makes
    clipping less biased and leaves the bound as it is. `terms` are added to what was released: they see weights, never
    records.

    >>> dp_sgd().describe()
    'dp-sgd: gradient, flat clipping'
    """

    name: str
    update: Update = gradients
    subspace: Subspace = field(default_factory=Ambient)
    project: Literal["before", "after"] = "before"
    clip: ClipRule = field(default_factory=Flat)
    pre_noise: float = 0.0
    terms: tuple[Term, ...] = ()

    def __post_init__(self) -> None:
        validate.non_negative("pre_noise", self.pre_noise)
        if self.project not in ("before", "after"):
            raise validate.SettingError("project", self.project, "'before' or 'after'")
        if isinstance(self.subspace, Embedding):
            matches = isinstance(self.clip, EmbeddingAndResidual) and self.clip.residual == self.subspace.residual
            if self.project != "before" or not matches:
                allowed = f"EmbeddingAndResidual({self.subspace.residual:g}, ...) before clipping for an Embedding"
                raise validate.SettingError("clip", self.clip.name, allowed)
        if isinstance(self.subspace, BesideLoss):
            matches = isinstance(self.clip, UpdateAndLoss) and self.clip.ratio == self.subspace.ratio
            if self.project != "before" or not matches:
                allowed = f"UpdateAndLoss({self.subspace.ratio:g}, ...) before clipping for a loss beside the update"
                raise validate.SettingError("clip", self.clip.name, allowed)

    @property
    def public(self) -> Any:
        """The public records that the method uses, or None."""
        return getattr(self.subspace, "public", None)

    @property
    def displaces(self) -> bool:
        """Whether updates are displacements rather than gradients."""
        return bool(getattr(self.update, "displaces", False))

    @property
    def unit(self) -> float:
        """The step size that an update's length contains, 1 for a gradient."""
        return self.update.lr if isinstance(self.update, LocalSteps) else 1.0

    def describe(self) -> str:
        """One line for statements and listings."""
        named = getattr(self.update, "name", None) or getattr(self.update, "__name__", "own update")
        what = "gradient" if self.update is gradients else named
        where = ""
        if not isinstance(self.subspace, Ambient):
            where = f", {self.subspace.name}, projected {self.project} clipping"
        noise = f", pre-clipping noise {self.pre_noise:g}" if self.pre_noise else ""
        terms = "".join(f", then {term.name}" for term in self.terms)
        return f"{self.name}: {what}{where}, {self.clip.name} clipping{noise}{terms}"


def dp_sgd(clip: ClipRule | None = None, pre_noise: float = 0.0) -> Method:
    """DP-SGD (Abadi et al., "Deep Learning with Differential Privacy", 2016).

    Each sample's gradient is clipped, the sum is noised in all p dimensions. With another clip rule it is
    Auto-S (Automatic), NSGD (Normalised) or DP-PSAC (PSAC).

    >>> from gnomon.clipping import Automatic
    >>> dp_sgd(clip=Automatic()).clip.name
    'automatic'
    """
    return Method("dp-sgd", clip=clip or Flat(), pre_noise=pre_noise)


def pdp(
    public: Any,
    rank: float = 50,
    clip: ClipRule | None = None,
    per_tensor: bool = False,
    every: int = 1,
    start: int = 0,
    batch: int | None = None,
    blocks: int | None = None,
    pre_noise: float = 0.0,
) -> Method:
    """PDP-SGD (Zhou et al., "Bypassing the Ambient Dimension", 2021): clip, noise, then project.

    The noisy sum is projected onto the top eigenvectors of public gradients: post-processing, private for
    any public data.

    >>> import torch
    >>> pdp((torch.zeros(4, 2), torch.zeros(4)), rank=2).project
    'after'
    """
    space = PublicEigenspace(public, rank, per_tensor, every, start, batch, blocks)
    return Method("pdp", subspace=space, project="after", clip=clip or Flat(), pre_noise=pre_noise)


def pcdp(
    public: Any,
    rank: float = 100,
    clip: ClipRule | None = None,
    per_tensor: bool = False,
    every: int = 1,
    start: int = 0,
    batch: int | None = None,
    blocks: int | None = None,
    pre_noise: float = 0.0,
) -> Method:
    """PCDP-SGD (Sha et al., "Projection in Advance", 2023): project, then clip and noise in the subspace.

    `per_tensor=True` is the published form. The paper is marked as withdrawn on arXiv; its privacy claim holds
    in the form used here, where each contribution is clipped in the k coordinates in which noise is added.

    >>> import torch
    >>> pcdp((torch.zeros(4, 2), torch.zeros(4)), rank=2).project
    'before'
    """
    space = PublicEigenspace(public, rank, per_tensor, every, start, batch, blocks)
    return Method("pcdp", subspace=space, project="before", clip=clip or Flat(), pre_noise=pre_noise)


def rpdp(rank: int = 800, redraw: bool = True, clip: ClipRule | None = None, pre_noise: float = 0.0) -> Method:
    """RPDP-SGD: as PDP-SGD with a random subspace, the baseline of both projection papers.

    >>> rpdp(rank=10).describe()
    'rpdp: gradient, random projection, rank 10, projected after clipping, flat clipping'
    """
    space = RandomProjection(rank, redraw)
    return Method("rpdp", subspace=space, project="after", clip=clip or Flat(), pre_noise=pre_noise)


def rsdp(rate: float = 0.3, cooling: bool = False, clip: ClipRule | None = None, pre_noise: float = 0.0) -> Method:
    """RSDP-SGD (Zhu and Blaschko, "Improving DP-SGD via Randomly Sparsified Gradients", 2023).

    >>> rsdp(rate=0.5).subspace.name
    'random mask, rate 0.5'
    """
    return Method("rsdp", subspace=RandomMask(rate, cooling), clip=clip or Flat(), pre_noise=pre_noise)


def gep(
    public: Any,
    rank: float = 100,
    residual: float = 0.4,
    clip: ClipRule | None = None,
    every: int = 1,
    batch: int | None = None,
) -> Method:
    """GEP (Yu et al., "Do Not Let Privacy Overbill Utility", 2021): embedding plus clipped residual.

    The paper counts embedding and residual as two releases; they come from one batch and are counted here as the
    one release they are.

    >>> import torch
    >>> gep((torch.zeros(4, 2), torch.zeros(4)), rank=2).clip.name
    'flat, embedding and residual'
    """
    space = Embedding(PublicEigenspace(public, rank, every=every, batch=batch), residual)
    return Method("gep", subspace=space, clip=EmbeddingAndResidual(residual, clip or Flat()))


def dp_lsgd(
    steps: int = 10,
    lr: float = 0.025,
    clip: ClipRule | None = None,
    momentum: float = 0.0,
    subspace: Subspace | None = None,
    project: Literal["before", "after"] = "before",
    pre_noise: float = 0.0,
) -> Method:
    """DP-LSGD ("Why Differentially-Private Local SGD", 2023): each sample takes local steps before it is clipped.

    The clip bound holds for the displacement, so it contains the local step size; the optimizer's learning rate is
    the server's, 1 in the paper. With one step it is DP-SGD clipped at `lr * gradient`. With
    `subspace=PublicEigenspace(...)` displacements are clipped in a public subspace, which nobody has published.

    >>> dp_lsgd(steps=5, lr=0.1).describe()
    'dp-lsgd: 5 local steps of 0.1, flat clipping'
    """
    return Method("dp-lsgd", LocalSteps(steps, lr, momentum), subspace or Ambient(), project, clip or Flat(), pre_noise)


METHODS: dict[str, Callable[..., Method]] = {
    "dp-sgd": dp_sgd,
    "pdp": pdp,
    "pcdp": pcdp,
    "rpdp": rpdp,
    "rsdp": rsdp,
    "gep": gep,
    "dp-lsgd": dp_lsgd,
}
"""The methods by the name that the command line uses."""
