"""A method is data: which update, which subspace, which clip rule, which step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn

from gnomon import validate
from gnomon.accounting import Expansion, FullBatch, Sampling
from gnomon.clipping import ClipRule, EmbeddingAndResidual, Flat, UpdateAndLoss
from gnomon.errors import SettingError
from gnomon.methods.routes import ProjectThenClip, Route
from gnomon.methods.steps import ConstrainedDescent, Descent, Step
from gnomon.subspaces import Ambient, BesideLoss, Embedding, GaussianSketch, Subspace
from gnomon.updates import Layouts, LocalDescent, Loss, Updates, gradients, local_sgd


class Update(Protocol):
    """Computes the per-sample updates of a batch, such as `gradients` or `LocalSteps`."""

    def __call__(
        self, model: nn.Module, loss: Loss, inputs: Any, targets: Any, *, layouts: Layouts | None = None
    ) -> Updates:
        """Return the updates. `layouts` is the caller's cache of model layouts, for `gradients` and `local_sgd`."""


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

    def __call__(
        self, model: nn.Module, loss: Loss, inputs: Any, targets: Any, *, layouts: Layouts | None = None
    ) -> Updates:
        return local_sgd(
            model, loss, inputs, targets, steps=self.steps, lr=self.lr, momentum=self.momentum, layouts=layouts
        )

    @property
    def name(self) -> str:
        momentum = f", momentum {self.momentum:g}" if self.momentum else ""
        return f"{self.steps} local steps of {self.lr:g}{momentum}"


@dataclass(frozen=True)
class Method:
    """A composition of stages.

    `route` is the order of projection, clipping and noise: `ProjectThenClip()`, `ClipThenProject()` or
    `ClipThenSketch()`.

    `pre_noise` adds normal noise of that standard deviation to every coordinate of every sample before it is clipped
    (Chen et al. 2020), which makes clipping less biased and leaves the bound as it is. `step` moves the model by what
    was released; `average` makes the average of all iterates the result. A method that is not `private` clips nothing
    and adds no noise.

    >>> Method("mine").describe()
    'mine: gradient, flat clipping'
    """

    name: str
    update: Update = gradients
    subspace: Subspace = field(default_factory=Ambient)
    route: Route = field(default_factory=ProjectThenClip)
    clip: ClipRule = field(default_factory=Flat)
    pre_noise: float = 0.0
    step: Step = field(default_factory=Descent)
    average: bool = False
    private: bool = True
    full_batch: bool = False

    def __post_init__(self) -> None:
        validate.non_negative("pre_noise", self.pre_noise)
        if not isinstance(self.route, Route):
            raise SettingError("route", self.route, "ProjectThenClip(), ClipThenProject() or ClipThenSketch()")
        self.route.check(self.subspace)
        if isinstance(self.step, ConstrainedDescent) and not isinstance(self.subspace, Ambient | GaussianSketch):
            raise SettingError("subspace", self.subspace.name, "Ambient() or a GaussianSketch to constrain")
        if isinstance(self.subspace, Embedding):
            matches = isinstance(self.clip, EmbeddingAndResidual) and self.clip.residual == self.subspace.residual
            if not (self.route.clips_coordinates and matches):
                allowed = f"EmbeddingAndResidual({self.subspace.residual:g}, ...) before clipping for an Embedding"
                raise SettingError("clip", self.clip.name, allowed)
        if isinstance(self.subspace, BesideLoss):
            matches = isinstance(self.clip, UpdateAndLoss) and self.clip.ratio == self.subspace.ratio
            if not (self.route.clips_coordinates and matches):
                allowed = f"UpdateAndLoss({self.subspace.ratio:g}, ...) before clipping for a loss beside the update"
                raise SettingError("clip", self.clip.name, allowed)

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
        return self.route.expansion(self.subspace)

    def check(self, sampler: Sampling) -> None:
        """An error if the method cannot work with the way records are drawn."""
        if self.full_batch and not isinstance(sampler, FullBatch):
            other = self.name.replace("-gd", "-minibatch")
            raise SettingError("sampler", sampler.name, f"the full batch for {self.name}, or use {other}")

    def describe(self) -> str:
        """One line for statements and listings."""
        named = getattr(self.update, "name", None) or getattr(self.update, "__name__", "own update")
        what = "gradient" if self.update is gradients else named
        where = ""
        if not isinstance(self.subspace, Ambient):
            where = f", {self.subspace.name}, projected {self.route.name}"
        noise = f", pre-clipping noise {self.pre_noise:g}" if self.pre_noise else ""
        clip = f"{self.clip.name} clipping" if self.private else "no clipping and no noise"
        held = f", {self.step.name}" if self.step.name else ""
        return f"{self.name}: {what}{where}, {clip}{noise}{held}" + (
            ", average of the iterates" if self.average else ""
        )
