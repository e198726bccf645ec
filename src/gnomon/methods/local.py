"""Methods whose samples take several steps by themselves before they are clipped."""

from __future__ import annotations

from gnomon.clipping import ClipRule, Flat
from gnomon.methods.method import LocalSteps, Method
from gnomon.methods.routes import ProjectThenClip, Route
from gnomon.subspaces import Ambient, Subspace


def dp_lsgd(
    steps: int = 10,
    lr: float = 0.025,
    clip: ClipRule | None = None,
    momentum: float = 0.0,
    subspace: Subspace | None = None,
    route: Route | None = None,
    pre_noise: float = 0.0,
) -> Method:
    """DP-LSGD ("Why Differentially-Private Local SGD", 2023): each sample takes local steps before it is clipped.

    The clip bound holds for the displacement, so it contains the local step size; the optimizer's learning rate is
    the server's, 1 in the paper. With one step it is DP-SGD clipped at `lr * gradient`. With
    `subspace=PublicEigenspace(...)` displacements are clipped in a public subspace, which nobody has published.

    >>> dp_lsgd(steps=5, lr=0.1).describe()
    'dp-lsgd: 5 local steps of 0.1, flat clipping'
    """
    return Method(
        "dp-lsgd",
        LocalSteps(steps, lr, momentum),
        subspace or Ambient(),
        route or ProjectThenClip(),
        clip or Flat(),
        pre_noise,
    )
