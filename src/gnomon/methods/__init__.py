"""The table of contents of the field: each published method is one short function that composes stages.

A combination that is not published works as well, because the stages compose: `Method(...)` takes any of them.
"""

from gnomon.methods.method import LocalSteps, Method, Update
from gnomon.methods.published import (
    METHODS,
    comp_gd,
    comp_minibatch,
    comp_sgd,
    dp_comp_gd,
    dp_comp_minibatch,
    dp_lsgd,
    dp_sgd,
    gep,
    pcdp,
    pdp,
    rpcdp,
    rpdp,
    rsdp,
)
from gnomon.methods.routes import (
    CLIP_AFTER_SKETCH,
    FORMS,
    LINEAR_SKETCH,
    PER_SAMPLE_NORMALISER,
    PUBLISHED_WHOLE_BATCH_NORMALISER,
    ClipThenProject,
    ClipThenSketch,
    Form,
    ProjectThenClip,
    Route,
)
from gnomon.methods.steps import ConstrainedDescent, Descent, Step, Term
from gnomon.methods.update_spaces import UpdateSpace, ZeroSum, softmax_head
from gnomon.methods.views import Augmentation, CropAndFlip, Views

__all__ = [
    "CLIP_AFTER_SKETCH",
    "FORMS",
    "LINEAR_SKETCH",
    "METHODS",
    "PER_SAMPLE_NORMALISER",
    "PUBLISHED_WHOLE_BATCH_NORMALISER",
    "Augmentation",
    "ClipThenProject",
    "ClipThenSketch",
    "ConstrainedDescent",
    "CropAndFlip",
    "Descent",
    "Form",
    "LocalSteps",
    "Method",
    "ProjectThenClip",
    "Route",
    "Step",
    "Term",
    "Update",
    "UpdateSpace",
    "Views",
    "ZeroSum",
    "comp_gd",
    "comp_minibatch",
    "comp_sgd",
    "dp_comp_gd",
    "dp_comp_minibatch",
    "dp_lsgd",
    "dp_sgd",
    "gep",
    "pcdp",
    "pdp",
    "rpcdp",
    "rpdp",
    "rsdp",
    "softmax_head",
]
