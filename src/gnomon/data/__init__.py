"""Records: sources, the public/private split, and sampling."""

from gnomon.data.fingerprint import fingerprints, overlap
from gnomon.data.loader import Loader
from gnomon.data.partition import IID, ByKey, Dirichlet, OneClass, Partition, Shards
from gnomon.data.sources import NAMES, DataError, Records, Source, load
from gnomon.data.sparse import CsrRecords
from gnomon.data.split import Split, check_disjoint, public_private
from gnomon.sampling.draws import positions

__all__ = [
    "IID",
    "NAMES",
    "ByKey",
    "CsrRecords",
    "DataError",
    "Dirichlet",
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
