"""Describes the software and hardware of a run, without names of people, hosts or folders."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from gnomon.version import __version__

PACKAGES = ("numpy", "scipy", "dp-accounting", "cryptography", "safetensors")
"""Packages whose versions are recorded."""


def environment() -> dict[str, Any]:
    """Return versions and machine as plain values, for `environment.json`.

    >>> sorted(environment())[:4]
    ['cpus', 'gnomon', 'machine', 'packages']
    """
    return {
        "gnomon": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "packages": {name: installed for name in PACKAGES if (installed := _version(name))},
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def versions() -> dict[str, str]:
    """Return the versions of Gnomon and PyTorch, which every finished cell of a study records.

    >>> sorted(versions())
    ['gnomon', 'torch']
    """
    return {"gnomon": __version__, "torch": torch.__version__}


def _version(name: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None
