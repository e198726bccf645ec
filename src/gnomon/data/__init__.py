"""Records: sources, splits, partitions, loading and fingerprints."""

from gnomon.data.fingerprint import FingerprintCache, fingerprints, overlap
from gnomon.data.loader import Loader
from gnomon.data.partition import IID, ByKey, Dirichlet, OneClass, Partition, Shards
from gnomon.data.records import Records
from gnomon.data.sources import NAMES, Source, load
from gnomon.data.sparse import CsrRecords
from gnomon.data.split import Split, check_disjoint, public_private
from gnomon.errors import DataError
from gnomon.sampling.draws import positions

__all__ = [
    "IID",
    "NAMES",
    "ByKey",
    "CsrRecords",
    "DataError",
    "Dirichlet",
    "FingerprintCache",
    "Loader",
    "OneClass",
    "Partition",
    "Records",
    "Shards",
    "Source",
    "Split",
    "check_disjoint",
    "fingerprints",
    "load",
    "overlap",
    "positions",
    "public_private",
]
