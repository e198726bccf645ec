"""Methods as data: which update, which subspace, which clip rule, which step."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from torch import nn

from gnomon import validate
from gnomon.accounting import Expansion, FullBatch, Sampling
from gnomon.clipping import ClipRule, Flat
from gnomon.errors import SettingError
from gnomon.methods.routes import ProjectThenClip, Route
from gnomon.methods.steps import Descent, Step
from gnomon.methods.update_spaces import UpdateSpace
from gnomon.subspaces import Ambient, Subspace
from gnomon.updates import Layouts, LocalDescent, Loss, Updates, gradients, local_sgd

Update = Callable[..., Updates]
"""A function (model, loss, inputs, targets) -> updates of the samples. It may have the attributes `name` (the text used
in statements), `displaces` (whether updates are displacements rather than gradients; default: False) and `unit` (the
step size that the length of an update contains; default: 1). If it has a keyword parameter `layouts`, it is passed the
cache of model layouts of the run, for `gradients` and `local_sgd`; if it has a keyword parameter `step`, the number of
the step, which is public, or 0 in the checks before the first step. An update must be a function of these arguments: it
must not keep state between calls. A step is refused if it changes the state of the object in the attribute `watched`
(default: none)."""


def with_layouts(update: Update, layouts: Layouts) -> Update:
    """Return an update with a cache of model layouts, if it accepts one."""
    return partial(update, layouts=layouts) if "layouts" in inspect.signature(update).parameters else update


def at_step(update: Update, step: int) -> Update:
    """Return an update with the number of the step, if it accepts one.

    >>> from gnomon.methods import Views
    >>> at_step(Views(2), 7).keywords, at_step(gradients, 7) is gradients
    ({'step': 7}, True)
    """
    return partial(update, step=step) if "step" in inspect.signature(update).parameters else update


@dataclass(frozen=True)
class LocalSteps:
    """The update of DP-LSGD: the displacement of the model by several steps of gradient descent on one sample alone.

    Args:
        steps: the number of local steps K.
        lr: the local learning rate.
        momentum: the local momentum.

    >>> LocalSteps(10, 0.025)
    LocalSteps(steps=10, lr=0.025, momentum=0.0)
    """

    steps: int = 10
    lr: float = 0.025
    momentum: float = 0.0

    displaces = True

    def __post_init__(self) -> None:
        LocalDescent(self.steps, self.lr, self.momentum)  # checks the settings

    def __call__(
        self, model: nn.Module, loss: Loss, inputs: Any, targets: Any, *, layouts: Layouts | None = None
    ) -> Updates:
        return local_sgd(
            model, loss, inputs, targets, steps=self.steps, lr=self.lr, momentum=self.momentum, layouts=layouts
        )

    @property
    def name(self) -> str:
        """The text used in statements and logs."""
        momentum = f", momentum {self.momentum:g}" if self.momentum else ""
        return f"{self.steps} local steps of {self.lr:g}{momentum}"

    @property
    def unit(self) -> float:
        """The local learning rate, which the length of a displacement contains."""
        return self.lr


@dataclass(frozen=True)
class Method:
    """A composition of stages. Any combination works that the stages themselves do not exclude.

    Args:
        name: the name of the method.
        update: computes the update of each sample (default: its gradient).
        subspace: the coordinates in which updates are projected.
        route: the order of projection, clipping and noise: `ProjectThenClip()`, `ClipThenProject()` or
            `ClipThenSketch()`.
        clip: the clip rule. The subspace may extend it to its block structure: see `clip_rule`.
        pre_noise: the standard deviation of normal noise that is added to every coordinate of every sample before
            clipping (Chen et al. 2020). It makes clipping less biased and does not change the clip bound.
        step: moves the model by a release.
        average: whether the result of training is the average of all iterates.
        private: whether updates are clipped and noise is added. A method that is not private gives no guarantee.
        full_batch: whether every step must use all records.

    Raises:
        SettingError: two stages exclude each other.

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
        if not isinstance(self.subspace, Subspace):
            raise SettingError("subspace", self.subspace, "an instance of gnomon.subspaces.Subspace")
        if not isinstance(self.clip, ClipRule):
            raise SettingError("clip", self.clip, "an instance of gnomon.clipping.ClipRule")
        if self.clip.assumes_blocks:
            expected = "the rule for one part of an update, such as Flat(): the subspace extends it to all parts"
            raise SettingError("clip", self.clip.name, expected)
        self.route.check(self.subspace, private=self.private)
        self.step.check(self.subspace)

    def within(self, space: UpdateSpace) -> Method:
        """Return the method with the noise outside of a known space of updates removed from every release.

        This is post-processing: the release and epsilon are those of the method without it. The caller vouches that
        the updates of all samples lie in the space; if they do not, the guarantee still holds, but part of the update
        is lost.

        Raises:
            SettingError: the method has a constrained step.

        >>> from gnomon.methods import ZeroSum
        >>> Method("mine").within(ZeroSum({"bias": 0})).describe()
        'mine: gradient, flat clipping, noise removed from the sums of bias (dimension 0)'
        """
        return replace(self, step=self.step.within(space))

    def update_with(self, layouts: Layouts) -> Update:
        """Return the update with a cache of model layouts, if it accepts one."""
        return with_layouts(self.update, layouts)

    @cached_property
    def clip_rule(self) -> ClipRule:
        """The rule by which samples are clipped: `clip`, extended to the block structure of the subspace."""
        return self.subspace.clip_rule(self.clip)

    @property
    def public(self) -> Any:
        """The public records that the method uses, or None."""
        return self.subspace.public

    @property
    def displaces(self) -> bool:
        """Whether updates are displacements rather than gradients."""
        return bool(getattr(self.update, "displaces", False))

    @property
    def unit(self) -> float:
        """The step size that the length of an update contains: the local learning rate, or 1 for gradients."""
        return float(getattr(self.update, "unit", 1.0))

    @property
    def expansion(self) -> Expansion | None:
        """The bound on how far the sum is stretched before noise; None if it is not, or if no noise is added."""
        return self.route.expansion(self.subspace) if self.private else None

    def check(self, sampler: Sampling) -> None:
        """Raise SettingError if the method cannot be used with this sampling scheme."""
        if self.full_batch and sampler != FullBatch():
            minibatch = self.name.replace("-gd", "-minibatch")
            raise SettingError("sampler", sampler.name, f"the full batch for {self.name}, or use {minibatch}")

    def describe(self) -> str:
        """Return one line for statements and listings. Checkpoints compare it, so its text is stable."""
        name = getattr(self.update, "name", None) or getattr(self.update, "__name__", "own update")
        update = "gradient" if self.update is gradients else name
        projection = "" if self.subspace.whole_space else f", {self.subspace.name}, projected {self.route.name}"
        clipping = f"{self.clip_rule.name} clipping" if self.private else "no clipping and no noise"
        pre_noise = f", pre-clipping noise {self.pre_noise:g}" if self.pre_noise else ""
        step = f", {self.step.name}" if self.step.name else ""
        average = ", average of the iterates" if self.average else ""
        return f"{self.name}: {update}{projection}, {clipping}{pre_noise}{step}{average}"
