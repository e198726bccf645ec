"""Subspaces: the coordinates in which updates are clipped and released, and the lift back to the parameters."""

from gnomon.subspaces.basis import Ambient, Basis, Held, StepContext, Subspace, coordinates_of, projected
from gnomon.subspaces.beside_loss import BesideLoss
from gnomon.subspaces.eigenspace import PublicEigenspace
from gnomon.subspaces.embedding import Embedding
from gnomon.subspaces.gaussian_sketch import GaussianSketch, Growing
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
    "StepContext",
    "Subspace",
    "coordinates_of",
    "projected",
]
