"""Constrained steps on sketched gradients, private and not."""

from __future__ import annotations

from gnomon.clipping import ClipRule, Flat
from gnomon.constraints import Constraint, parse
from gnomon.methods.forms import CLIP_AFTER_SKETCH, LINEAR_SKETCH, Form
from gnomon.methods.method import Method
from gnomon.methods.routes import ProjectThenClip
from gnomon.methods.steps import ConstrainedDescent
from gnomon.subspaces import Ambient, GaussianSketch
from gnomon.subspaces.gaussian_sketch import Rows


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

    >>> from gnomon.methods.forms import LINEAR_SKETCH
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
        route=form.route if sketch is not None else ProjectThenClip(),
        clip=clip or Flat(),
        step=ConstrainedDescent(parse(constraint)),
        average=not last,
        private=private,
        full_batch=full_batch,
    )
