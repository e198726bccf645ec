"""The published methods, one function each: which update, which subspace, which clip rule.

A method is data. A combination that nobody has published works because the stages compose.
"""

from __future__ import annotations

from collections.abc import Callable

from gnomon.methods.compressed import comp_gd, comp_minibatch, comp_sgd, dp_comp_gd, dp_comp_minibatch
from gnomon.methods.local import dp_lsgd
from gnomon.methods.method import LocalSteps, Method, Update
from gnomon.methods.projected import dp_sgd, gep, pcdp, pdp, rpcdp, rpdp, rsdp
from gnomon.methods.routes import ClipThenProject, ClipThenSketch, ProjectThenClip, Route

__all__ = [
    "METHODS",
    "ClipThenProject",
    "ClipThenSketch",
    "LocalSteps",
    "Method",
    "ProjectThenClip",
    "Route",
    "Update",
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
]

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
"""The methods by the name that the command line uses."""
