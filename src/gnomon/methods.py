"""The published methods, one function each: which update, which subspace, which clip rule.

A method is data. A combination that nobody has published works because the stages compose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from gnomon import validate
from gnomon.accounting import Expansion, FullBatch, Sampling
from gnomon.clipping import ClipRule, EmbeddingAndResidual, Flat, UpdateAndLoss
from gnomon.constraints import Constraint, parse
from gnomon.forms import CLIP_AFTER_SKETCH, LINEAR_SKETCH, Form
from gnomon.steps import ConstrainedDescent, Descent, Step
from gnomon.subspaces import (
    Ambient,
    BesideLoss,
    Embedding,
    GaussianSketch,
    PublicEigenspace,
    RandomMask,
    RandomProjection,
    Subspace,
)
from gnomon.subspaces.gaussian_sketch import Rows
from gnomon.updates import Loss, Updates, gradients, local_sgd
from gnomon.updates.drift import LocalDescent

Update = Callable[[nn.Module, Loss, Any, Any], Updates]
"""(model, loss, inputs, targets) -> what each sample would change"""


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
        LocalDescent(self.steps, self.lr, self.momentum)

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
    are clipped and noised in all parameters, and the released sum is projected. `"between"`: updates are clipped in all
    parameters and their sum is noised in the subspace, which must say how far it stretches a change.

    `pre_noise` adds normal noise of that standard deviation to every coordinate of every sample before it is clipped
    (Chen et al. 2020), which makes clipping less biased and leaves the bound as it is. `step` moves the model by what
    was released; `average` makes the average of all iterates the result. A method that is not `private` clips nothing
    and adds no noise.

    >>> dp_sgd().describe()
    'dp-sgd: gradient, flat clipping'
    """

    name: str
    update: Update = gradients
    subspace: Subspace = field(default_factory=Ambient)
    project: Literal["before", "between", "after"] = "before"
    clip: ClipRule = field(default_factory=Flat)
    pre_noise: float = 0.0
    step: Step = field(default_factory=Descent)
    average: bool = False
    private: bool = True
    full_batch: bool = False

    def __post_init__(self) -> None:
        validate.non_negative("pre_noise", self.pre_noise)
        if self.project not in ("before", "between", "after"):
            raise validate.SettingError("project", self.project, "'before', 'between' or 'after'")
        if self.project == "between" and getattr(self.subspace, "expansion", None) is None:
            allowed = "'before' or 'after': only a GaussianSketch says how far it stretches a sum"
            raise validate.SettingError("project", self.project, allowed)
        if isinstance(self.step, ConstrainedDescent) and not isinstance(self.subspace, Ambient | GaussianSketch):
            raise validate.SettingError("subspace", self.subspace.name, "Ambient() or a GaussianSketch to constrain")
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

    @property
    def expansion(self) -> Expansion | None:
        """How far the sum can be stretched before noise; None where each contribution is clipped last."""
        return getattr(self.subspace, "expansion", None) if self.project == "between" else None

    def check(self, sampler: Sampling) -> None:
        """An error if the method cannot work with the way records are drawn."""
        if self.full_batch and not isinstance(sampler, FullBatch):
            other = self.name.replace("-gd", "-minibatch")
            raise validate.SettingError("sampler", sampler.name, f"the full batch for {self.name}, or use {other}")

    def describe(self) -> str:
        """One line for statements and listings."""
        named = getattr(self.update, "name", None) or getattr(self.update, "__name__", "own update")
        what = "gradient" if self.update is gradients else named
        where = ""
        if not isinstance(self.subspace, Ambient):
            place = f"{self.project} clipping" + (" and noise" if self.project == "between" else "")
            where = f", {self.subspace.name}, projected {place}"
        noise = f", pre-clipping noise {self.pre_noise:g}" if self.pre_noise else ""
        clip = f"{self.clip.name} clipping" if self.private else "no clipping and no noise"
        held = f", {self.step.name}" if self.step.name else ""
        return f"{self.name}: {what}{where}, {clip}{noise}{held}" + (
            ", average of the iterates" if self.average else ""
        )


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


def comp_sgd(constraint: Constraint | str, sketch: int | Rows | None = 200, last: bool = False) -> Method:
    """CompSGD (Kasiviswanathan 2021): constrained steps on sketched gradients. NOT private.

    Draw one record a step (`FixedSize(1)`). The result is the average of the iterates, or with `last` the last one;
    `sketch=None` is projected SGD.

    >>> comp_sgd("l1:5", sketch=20).private
    False
    """
    return _compressed("comp-sgd", constraint, sketch, LINEAR_SKETCH, None, last, private=False)


def comp_gd(constraint: Constraint | str, sketch: int | Rows | None = 200, last: bool = False) -> Method:
    """CompGD (Huang, Lei and Kaban 2023): as CompSGD with the gradient of all records. NOT private.

    >>> comp_gd("l1:5").full_batch
    True
    """
    return _compressed("comp-gd", constraint, sketch, LINEAR_SKETCH, None, last, private=False, full_batch=True)


def comp_minibatch(constraint: Constraint | str, sketch: int | Rows | None = 200, last: bool = False) -> Method:
    """CompMinibatch (Huang, Lei and Kaban 2023): as CompSGD with several records a step. NOT private.

    >>> comp_minibatch("simplex").step.name
    'held to the simplex of sum 1'
    """
    return _compressed("comp-minibatch", constraint, sketch, LINEAR_SKETCH, None, last, private=False)


def dp_comp_gd(
    constraint: Constraint | str,
    sketch: int | Rows | None = 200,
    form: Form = CLIP_AFTER_SKETCH,
    clip: ClipRule | None = None,
    last: bool = False,
) -> Method:
    """DP-CompGD (Huang, Lei and Kaban, "Optimisation and Learning with Randomly Compressed Gradient Updates", 2023).

    All records in every step, noise in as many dimensions as the sketch has. `form` says where the sketch comes;
    the published one is sound only with the correction that `PUBLISHED_WHOLE_BATCH_NORMALISER` brings.

    >>> from gnomon.forms import LINEAR_SKETCH
    >>> dp_comp_gd("l1:5", sketch=50, form=LINEAR_SKETCH).project
    'between'
    """
    return _compressed("dp-comp-gd", constraint, sketch, form, clip, last, full_batch=True)


def dp_comp_minibatch(
    constraint: Constraint | str,
    sketch: int | Rows | None = 200,
    form: Form = CLIP_AFTER_SKETCH,
    clip: ClipRule | None = None,
    last: bool = False,
) -> Method:
    """DP-CompMinibatch (Huang, Lei and Kaban 2023): as DP-CompGD on sampled batches.

    >>> dp_comp_minibatch("l1:5", sketch=50).subspace.name
    'Gaussian sketch, 50 directions'
    """
    return _compressed("dp-comp-minibatch", constraint, sketch, form, clip, last)


def _compressed(
    name: str,
    constraint: Constraint | str,
    sketch: int | Rows | None,
    form: Form,
    clip: ClipRule | None,
    last: bool,
    private: bool = True,
    full_batch: bool = False,
) -> Method:
    return Method(
        name,
        subspace=Ambient() if sketch is None else GaussianSketch(sketch, form.normalised),
        project=form.project if sketch is not None else "before",
        clip=clip or Flat(),
        step=ConstrainedDescent(parse(constraint)),
        average=not last,
        private=private,
        full_batch=full_batch,
    )


METHODS: dict[str, Callable[..., Method]] = {
    "dp-sgd": dp_sgd,
    "pdp": pdp,
    "pcdp": pcdp,
    "rpdp": rpdp,
    "rsdp": rsdp,
    "gep": gep,
    "dp-lsgd": dp_lsgd,
    "comp-sgd": comp_sgd,
    "comp-gd": comp_gd,
    "comp-minibatch": comp_minibatch,
    "dp-comp-gd": dp_comp_gd,
    "dp-comp-minibatch": dp_comp_minibatch,
}
"""The methods by the name that the command line uses."""
