"""The published methods, one function each: a method is a composition of stages, and its paper is in the docstring.

`None` for a clip rule means flat clipping. The settings of subspaces and clip rules are explained where they are
defined: `gnomon.subspaces` and `gnomon.clipping`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gnomon.clipping import ClipRule, Flat
from gnomon.constraints import Constraint, parse
from gnomon.methods.method import LocalSteps, Method
from gnomon.methods.routes import CLIP_AFTER_SKETCH, LINEAR_SKETCH, ClipThenProject, Form, ProjectThenClip, Route
from gnomon.methods.steps import ConstrainedDescent
from gnomon.subspaces import (
    Ambient,
    Embedding,
    GaussianSketch,
    PublicEigenspace,
    RandomMask,
    RandomProjection,
    Subspace,
)
from gnomon.subspaces.gaussian_sketch import Rows

# -- gradients in all parameters ---------------------------------------------------------------------


def dp_sgd(clip: ClipRule | None = None, pre_noise: float = 0.0) -> Method:
    """DP-SGD (Abadi et al., "Deep Learning with Differential Privacy", 2016).

    Clip the gradient of each sample and add noise to the sum in all p dimensions. Other clip rules give Auto-S
    (`Automatic`), NSGD (`Normalised`) and DP-PSAC (`PSAC`).

    >>> from gnomon.clipping import Automatic
    >>> dp_sgd(clip=Automatic()).clip.name
    'automatic'
    """
    return Method("dp-sgd", clip=clip or Flat(), pre_noise=pre_noise)


def dp_lsgd(
    steps: int = 10,
    lr: float = 0.025,
    clip: ClipRule | None = None,
    momentum: float = 0.0,
    subspace: Subspace | None = None,
    route: Route | None = None,
    pre_noise: float = 0.0,
) -> Method:
    """DP-LSGD ("Why Differentially-Private Local SGD", 2023): each sample takes local steps, then is clipped.

    The clip bound applies to the displacement, whose length contains the local learning rate `lr`. The optimizer's
    learning rate is that of the server, 1 in the paper. With one local step this is DP-SGD on `lr * gradient`. With
    `subspace=PublicEigenspace(...)` displacements are clipped in a public subspace, which is not a published method.

    >>> dp_lsgd(steps=5, lr=0.1).describe()
    'dp-lsgd: 5 local steps of 0.1, flat clipping'
    """
    return Method(
        "dp-lsgd",
        update=LocalSteps(steps, lr, momentum),
        subspace=subspace or Ambient(),
        route=route or ProjectThenClip(),
        clip=clip or Flat(),
        pre_noise=pre_noise,
    )


# -- gradients in a subspace of public gradients -----------------------------------------------------


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
    """PDP-SGD (Zhou et al., "Bypassing the Ambient Dimension", 2021): clip, add noise, then project.

    The noisy sum is projected onto the top eigenvectors of public gradients. The projection is post-processing, so the
    guarantee holds for any public data.

    >>> import torch
    >>> pdp((torch.zeros(4, 2), torch.zeros(4)), rank=2).route
    ClipThenProject()
    """
    space = PublicEigenspace(public, rank, per_tensor, every, start, batch, blocks)
    return Method("pdp", subspace=space, route=ClipThenProject(), clip=clip or Flat(), pre_noise=pre_noise)


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
    """PCDP-SGD (Sha et al., "Projection in Advance", 2023): project, then clip and add noise in the subspace.

    `per_tensor=True` is the published form. The paper is marked as withdrawn on arXiv. Its privacy claim holds in the
    form implemented here, where each contribution is clipped in the k coordinates in which noise is added.

    >>> import torch
    >>> pcdp((torch.zeros(4, 2), torch.zeros(4)), rank=2).route
    ProjectThenClip()
    """
    space = PublicEigenspace(public, rank, per_tensor, every, start, batch, blocks)
    return Method("pcdp", subspace=space, clip=clip or Flat(), pre_noise=pre_noise)


def gep(
    public: Any,
    rank: float = 100,
    residual: float = 0.4,
    clip: ClipRule | None = None,
    every: int = 1,
    batch: int | None = None,
) -> Method:
    """GEP (Yu et al., "Do Not Let Privacy Overbill Utility", 2021): release an embedding and a clipped residual.

    The paper accounts for embedding and residual as two releases. They come from the same batch and are accounted for
    here as one release of one vector.

    >>> import torch
    >>> gep((torch.zeros(4, 2), torch.zeros(4)), rank=2).clip_rule.name
    'flat, embedding and residual'
    """
    space = Embedding(PublicEigenspace(public, rank, every=every, batch=batch), residual)
    return Method("gep", subspace=space, clip=clip or Flat())


# -- gradients in random coordinates -----------------------------------------------------------------


def rpdp(
    rank: int = 800,
    redraw: bool = True,
    clip: ClipRule | None = None,
    pre_noise: float = 0.0,
    start: int = 0,
    per_tensor: bool = False,
) -> Method:
    """RPDP-SGD: PDP-SGD with a random subspace, the baseline of Zhou et al. (2021) and Sha et al. (2023).

    >>> rpdp(rank=10).describe()
    'rpdp: gradient, random projection, rank 10, projected after clipping, flat clipping'
    """
    space = RandomProjection(rank, redraw, start, per_tensor)
    return Method("rpdp", subspace=space, route=ClipThenProject(), clip=clip or Flat(), pre_noise=pre_noise)


def rpcdp(
    rank: int = 800,
    redraw: bool = True,
    clip: ClipRule | None = None,
    pre_noise: float = 0.0,
    start: int = 0,
    per_tensor: bool = False,
) -> Method:
    """PCDP-SGD with a random subspace. The name is ours; Sha et al. (2023) seem to have run it as RPDP-SGD.

    >>> rpcdp(rank=10).describe()
    'rpcdp: gradient, random projection, rank 10, projected before clipping, flat clipping'
    """
    space = RandomProjection(rank, redraw, start, per_tensor)
    return Method("rpcdp", subspace=space, clip=clip or Flat(), pre_noise=pre_noise)


def rsdp(rate: float = 0.3, cooling: bool = False, clip: ClipRule | None = None, pre_noise: float = 0.0) -> Method:
    """RSDP-SGD (Zhu and Blaschko, "Improving DP-SGD via Randomly Sparsified Gradients", 2023).

    >>> rsdp(rate=0.5).subspace.name
    'random mask, rate 0.5'
    """
    return Method("rsdp", subspace=RandomMask(rate, cooling), clip=clip or Flat(), pre_noise=pre_noise)


# -- constrained steps on sketched gradients ---------------------------------------------------------


def dp_comp_gd(
    constraint: Constraint | str,
    sketch: int | Rows | None = 200,
    form: Form = CLIP_AFTER_SKETCH,
    clip: ClipRule | None = None,
    last: bool = False,
) -> Method:
    """DP-CompGD (Huang, Lei and Kaban, "Optimisation and Learning with Randomly Compressed Gradient Updates", 2023).

    Every step uses all records, and noise has as many dimensions as the sketch.

    Args:
        constraint: the convex set of allowed weights, or its text such as "l1:5".
        sketch: the number of directions; None for projected gradient descent without a sketch. A schedule such as
            `Growing(constraint)` works with the forms that clip after the sketch: no accounting is available for
            sketched sums whose number of directions changes.
        form: where the sketch is applied. The published form is sound only with the correction that the accounting of
            `PUBLISHED_WHOLE_BATCH_NORMALISER` includes.
        clip: the clip rule.
        last: return the last iterate instead of the average of all iterates.

    >>> from gnomon.methods import LINEAR_SKETCH
    >>> dp_comp_gd("l1:5", sketch=50, form=LINEAR_SKETCH).route.name
    'between clipping and noise'
    """
    return _compressed("dp-comp-gd", constraint, sketch, form, clip, last, full_batch=True)


def dp_comp_minibatch(
    constraint: Constraint | str,
    sketch: int | Rows | None = 200,
    form: Form = CLIP_AFTER_SKETCH,
    clip: ClipRule | None = None,
    last: bool = False,
) -> Method:
    """DP-CompMinibatch (Huang, Lei and Kaban 2023): DP-CompGD on sampled batches.

    >>> dp_comp_minibatch("l1:5", sketch=50).subspace.name
    'Gaussian sketch, 50 directions'
    """
    return _compressed("dp-comp-minibatch", constraint, sketch, form, clip, last)


def comp_sgd(constraint: Constraint | str, sketch: int | Rows | None = 200, last: bool = False) -> Method:
    """CompSGD (Kasiviswanathan 2021): constrained steps on sketched gradients. NOT private.

    Sample one record per step (`FixedSize(1)`).

    Args:
        constraint: the convex set of allowed weights, or its text such as "l1:5".
        sketch: the number of directions, a schedule such as the published `Growing(constraint)`, or None for
            projected SGD without a sketch.
        last: return the last iterate instead of the average of all iterates.

    >>> comp_sgd("l1:5", sketch=20).private
    False
    """
    return _compressed("comp-sgd", constraint, sketch, LINEAR_SKETCH, None, last, private=False)


def comp_gd(constraint: Constraint | str, sketch: int | Rows | None = 200, last: bool = False) -> Method:
    """CompGD (Huang, Lei and Kaban 2023): CompSGD with the gradient of all records. NOT private.

    >>> comp_gd("l1:5").full_batch
    True
    """
    return _compressed("comp-gd", constraint, sketch, LINEAR_SKETCH, None, last, private=False, full_batch=True)


def comp_minibatch(constraint: Constraint | str, sketch: int | Rows | None = 200, last: bool = False) -> Method:
    """CompMinibatch (Huang, Lei and Kaban 2023): CompSGD with several records per step. NOT private.

    >>> comp_minibatch("simplex").step.name
    'held to the simplex of sum 1'
    """
    return _compressed("comp-minibatch", constraint, sketch, LINEAR_SKETCH, None, last, private=False)


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
    """Compose a constrained method; without a sketch the form does not matter."""
    return Method(
        name,
        subspace=Ambient() if sketch is None else GaussianSketch(sketch, form.normalised),
        route=ProjectThenClip() if sketch is None else form.route,
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
    "rpcdp": rpcdp,
    "rsdp": rsdp,
    "gep": gep,
    "dp-lsgd": dp_lsgd,
    "comp-sgd": comp_sgd,
    "comp-gd": comp_gd,
    "comp-minibatch": comp_minibatch,
    "dp-comp-gd": dp_comp_gd,
    "dp-comp-minibatch": dp_comp_minibatch,
}
"""The methods by their names on the command line."""
