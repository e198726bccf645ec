"""Fixed feature maps: functions of one record, with a declared origin of their statistics, computed once."""

from gnomon.features.binned import BinnedColumns
from gnomon.features.checks import check_per_record, check_private
from gnomon.features.compute import compute
from gnomon.features.concatenated import Concatenated
from gnomon.features.context import TokenContext
from gnomon.features.distortion import DISTORTIONS, Distortion, augmented
from gnomon.features.feature_map import Chain, FeatureMap, Origin, compose, unit_norm
from gnomon.features.grid_whitening import GridWhitening
from gnomon.features.ngrams import HashedNgrams
from gnomon.features.patches import WhitenedPatches
from gnomon.features.pipeline import Pipeline, pipeline
from gnomon.features.pretrained import Pretrained
from gnomon.features.random_features import RandomFeatures
from gnomon.features.registry import MAPS, Facts, build
from gnomon.features.scaled import Scaled
from gnomon.features.scattering import Scattering
from gnomon.features.whitening import PublicWhitening

__all__ = [
    "DISTORTIONS",
    "MAPS",
    "BinnedColumns",
    "Chain",
    "Concatenated",
    "Distortion",
    "Facts",
    "FeatureMap",
    "GridWhitening",
    "HashedNgrams",
    "Origin",
    "Pipeline",
    "Pretrained",
    "PublicWhitening",
    "RandomFeatures",
    "Scaled",
    "Scattering",
    "TokenContext",
    "WhitenedPatches",
    "augmented",
    "build",
    "check_per_record",
    "check_private",
    "compose",
    "compute",
    "pipeline",
    "unit_norm",
]
