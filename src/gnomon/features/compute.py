"""Compute the features of records once: in chunks, in parallel, and from the disk if they were computed before."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from gnomon.errors import DataError, SettingError
from gnomon.features.checks import check_map, check_per_record, check_private
from gnomon.features.feature_map import FeatureMap
from gnomon.features.inputs import Inputs
from gnomon.features.store import Damaged, Entry
from gnomon.memory import available_memory, format_bytes
from gnomon.validate import whole

DTYPES = {"float32": torch.float32, "float16": torch.float16}

SAMPLE = 8
"""Records on which a map is checked, and on which stored features are compared with fresh ones."""

SAME = {torch.float32: 1e-4, torch.float16: 2e-3}
"""The largest relative difference of stored and fresh features of one record."""


def compute(
    feature_map: FeatureMap,
    inputs: Any,
    *,
    cache: str | os.PathLike[str] | None = None,
    dtype: str = "float32",
    chunk: int = 256,
    workers: int | None = None,
    progress: bool = True,
    private: bool = True,
) -> Tensor:
    """Return the features of records, (N, d), in the order of the records.

    The map is checked first: it must treat each record by itself (`check_per_record`, on a few records), and its
    public records must not be among the private ones (`check_private`). With a cache, features are written to a file
    that is named by a hash of the map and of the records, and are read from there the next time; the file is as
    private as the records. The result is then mapped into memory, so that neither the records (a numpy.memmap) nor
    the features need to fit there.

    Args:
        feature_map: the map; it runs on the device of its buffers.
        inputs: a tensor, a NumPy array, Records, a list of texts, or a gnomon.data.Loader of any data set.
        cache: the folder of cached features; None keeps them in memory only.
        dtype: "float32", or "float16" for half the size, which is enough for features of norm one.
        chunk: the number of records that are mapped at a time.
        workers: the number of threads; None for as many as PyTorch uses, and one on other devices than the CPU.
        progress: whether to show a progress bar.
        private: whether the records are private; False for public and test records.

    Raises:
        SettingError: the map looks at more than one record, is random or is in training mode, or a setting is bad.
        DataError: a feature is not finite, or a public record of the map is among the private records.

    >>> from gnomon.features import RandomFeatures
    >>> feature_map = RandomFeatures([(0, 1), (0, 1)], features=5)
    >>> compute(feature_map, torch.rand(30, 2), progress=False).shape
    torch.Size([30, 10])
    """
    check_map(feature_map)
    if dtype not in DTYPES:
        raise SettingError("dtype", dtype, "'float32' or 'float16'")
    chunk = whole("chunk", chunk)
    workers = _workers(feature_map, workers)
    records = Inputs(inputs)
    if private and feature_map.origin.fingerprints:
        check_private(feature_map, records.fingerprints())
    positions = sorted({round(i * (len(records) - 1) / (SAMPLE - 1)) for i in range(SAMPLE)})
    sample = check_per_record(feature_map, records.at(positions, feature_map.device)).cpu()
    shape, kind = (len(records), sample.shape[1]), DTYPES[dtype]
    chunks = _chunks(feature_map, records, kind, chunk, workers, progress)
    if cache is None:
        return _in_memory(chunks, shape, kind)
    entry = Entry(Path(cache), _key(feature_map, records, dtype), shape, dtype, feature_map.name)
    try:
        stored = entry.read()
        if stored is not None and not _same(stored[positions].float(), sample, SAME[kind]):
            raise Damaged(f"{entry.path} does not hold the features of these records")
    except Damaged as damage:
        warnings.warn(f"{damage}; the features are computed again", stacklevel=2)
        stored = None
    if stored is None:
        entry.write(chunks)
        stored = entry.read(verify=False)
    if stored is None:
        raise DataError(entry.path, "was removed while it was written", "compute the features again")
    return stored


def _workers(feature_map: FeatureMap, workers: int | None) -> int:
    if workers is not None:
        return whole("workers", workers)
    return torch.get_num_threads() if feature_map.device.type == "cpu" else 1


def _key(feature_map: FeatureMap, records: Inputs, dtype: str) -> str:
    return hashlib.sha256(f"{feature_map.identity()} {records.digest()} {dtype}".encode()).hexdigest()


def _same(stored: Tensor, fresh: Tensor, tolerance: float) -> bool:
    norms = torch.linalg.vector_norm(fresh, dim=1).clamp(min=1e-6)
    return bool((torch.linalg.vector_norm(stored - fresh, dim=1) <= tolerance * norms).all())


def _in_memory(chunks: Iterator[Tensor], shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    needed, available = shape[0] * shape[1] * dtype.itemsize, available_memory()
    if available is not None and needed > available:
        sizes = f"{format_bytes(needed)} of features do not fit into {format_bytes(available)} of memory"
        raise SettingError("cache", None, f"a folder, because {sizes}")
    result = torch.empty(shape, dtype=dtype)
    start = 0
    for features in chunks:
        result[start : start + len(features)] = features
        start += len(features)
    return result


def _chunks(
    feature_map: FeatureMap, records: Inputs, dtype: torch.dtype, size: int, workers: int, progress: bool
) -> Iterator[Tensor]:
    """Yield the features of one chunk after another, on the CPU, while threads compute the next ones."""

    def features(start: int) -> Tensor:
        batch = records.between(start, start + size, feature_map.device)
        result = feature_map(batch).cpu()
        _refuse_not_finite(result, batch, start, feature_map)
        converted = result.to(dtype)
        if not converted.isfinite().all():
            raise SettingError("dtype", "float16", "'float32', because a feature is larger than 65504")
        return converted

    starts = range(0, len(records), size)
    with tqdm(total=len(records), unit="record", disable=not progress, desc="features", dynamic_ncols=True) as bar:
        for result in _in_order(features, starts, workers):
            yield result
            bar.update(len(result))


def _in_order(work: Any, items: range, workers: int) -> Iterator[Tensor]:
    """Yield the result of each item in order; a few are computed ahead, so that memory stays bounded."""
    if workers == 1 or len(items) == 1:
        yield from map(work, items)
        return
    with _one_thread_each(), ThreadPoolExecutor(workers) as pool:
        ahead: deque[Future[Tensor]] = deque()
        try:
            for item in items:
                ahead.append(pool.submit(work, item))
                if len(ahead) > 2 * workers:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Let each of our threads compute alone, without PyTorch's own threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _refuse_not_finite(features: Tensor, batch: Any, start: int, feature_map: FeatureMap) -> None:
    bad = ~features.isfinite().all(1)
    if not bad.any():
        return
    first = int(bad.nonzero()[0])
    subject = f"record {start + first}"
    if isinstance(batch, Tensor) and batch.is_floating_point() and not batch[first].isfinite().all():
        raise DataError(subject, "has inputs that are not finite", "replace or remove NaN and inf in the records")
    problem = f"has features that are not finite under {feature_map.name}"
    raise DataError(subject, problem, "correct the feature map, or the record")
