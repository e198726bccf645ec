"""Subspaces: in which coordinates do we look at an update? Two verbs, `coordinates` and `lift`."""

from gnomon.subspaces.basis import Ambient, Basis, Seeing, StepContext, Subspace, inside, projected, seeing
from gnomon.subspaces.beside_loss import BesideLoss
from gnomon.subspaces.eigenspace import PublicEigenspace
from gnomon.subspaces.embedding import Embedding
from gnomon.subspaces.gaussian_sketch import GaussianSketch, Growing
from gnomon.subspaces.held import Held
from gnomon.subspaces.random_mask import RandomMask
from gnomon.subspaces.random_projection import RandomProjection

__all__ = [
    "Ambient",
    "Basis",
    "BesideLoss",
    "Embedding",
    "GaussianSketch",
    "Growing",
    "Held",
    "PublicEigenspace",
    "RandomMask",
    "RandomProjection",
    "Seeing",
    "StepContext",
    "Subspace",
    "inside",
    "projected",
    "seeing",
]
