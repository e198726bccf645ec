"""Memory of the process: freed memory is reused."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from gnomon.memory import reuse_freed_memory

def step():
    return [b"1" * 2**22 for _ in range(10)]

if sys.argv[1] == "reuse":
    reuse_freed_memory()
for _ in range(2):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_memory_that_a_step_frees_is_there_for_the_next_step():
    faults = {
        mode: int(subprocess.run([sys.executable, "-c", PROGRAM, mode], check=True, capture_output=True).stdout)
        for mode in ("reuse", "default")
    }
    assert faults["reuse"] < faults["default"] / 2
