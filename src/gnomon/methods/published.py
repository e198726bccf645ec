"""DP-SGD, and the methods that look at gradients in a subspace or at some coordinates."""

from __future__ import annotations

from typing import Any

from gnomon.clipping import ClipRule, EmbeddingAndResidual, Flat
from gnomon.methods.method import Method
from gnomon.methods.routes import ClipThenProject
from gnomon.subspaces import Embedding, PublicEigenspace, RandomMask, RandomProjection


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
    """PCDP-SGD (Sha et al., "Projection in Advance", 2023): project, then clip and noise in the subspace.

    `per_tensor=True` is the published form. The paper is marked as withdrawn on arXiv; its privacy claim holds
    in the form used here, where each contribution is clipped in the k coordinates in which noise is added.

    >>> import torch
    >>> pcdp((torch.zeros(4, 2), torch.zeros(4)), rank=2).route
    ProjectThenClip()
    """
    space = PublicEigenspace(public, rank, per_tensor, every, start, batch, blocks)
    return Method("pcdp", subspace=space, clip=clip or Flat(), pre_noise=pre_noise)


def rpdp(
    rank: int = 800,
    redraw: bool = True,
    clip: ClipRule | None = None,
    pre_noise: float = 0.0,
    start: int = 0,
    per_tensor: bool = False,
) -> Method:
    """RPDP-SGD: as PDP-SGD with a random subspace, the baseline of both projection papers.

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
    """As PCDP-SGD with a random subspace: projected before clipping, which is what some published RPDP-SGD looks like.

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
