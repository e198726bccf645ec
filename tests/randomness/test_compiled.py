"""Compiling is optional, happens in the background, and can fail without consequences."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from scipy import stats

from gnomon.randomness import SecureNoise, compiled, ziggurat
from gnomon.randomness.compiled import Kernel
from gnomon.release import SeededNoise, door
from tests.randomness.generators import wait_for

SIGNATURE = "float64(float64)"


def plus_one(x):
    return x + 1.0


def fresh(agrees=lambda compiled: compiled(1.0) == 2.0) -> Kernel:
    return Kernel(plus_one, SIGNATURE, agrees)


def test_importing_and_small_draws_do_not_import_numba():
    code = "import sys, gnomon; from gnomon.release import SecureNoise; SecureNoise().normal(5000); "
    for more, expected in (("", "False"), ("import numba; ", "True")):  # the second is the control
        if more:
            pytest.importorskip("numba")
        command = [sys.executable, "-c", code + more + "print('numba' in sys.modules)"]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == expected


def test_compiling_starts_in_the_background_after_enough_numbers(monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.setattr(compiled, "COMPILE_AFTER", 1000)
    kernel = fresh()
    assert kernel.after(999) is None
    assert not kernel._started.locked()
    assert kernel.after(1) is None  # the thread has only just started
    wait_for(lambda: kernel.after(1) is not None)
    assert kernel.after(1)(2.0) == 3.0


def test_a_kernel_is_compiled_once(monkeypatch):
    monkeypatch.setattr(compiled, "COMPILE_AFTER", 10)
    started = []
    kernel = fresh()
    monkeypatch.setattr(kernel, "_start", lambda: started.append(None))
    threads = [threading.Thread(target=lambda: [kernel.after(1) for _ in range(100)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(started) == 1


def test_a_source_passes_from_one_method_to_the_other(monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.setattr(compiled, "COMPILE_AFTER", 2**17)
    kernel = Kernel(ziggurat.ziggurat, ziggurat.KERNEL._signature, ziggurat._agrees)
    monkeypatch.setattr(ziggurat, "KERNEL", kernel)
    source, drawn = SecureNoise(), []
    wait_for(lambda: drawn.append(source.normal(2**14)) or kernel.after(0) is not None, 60)
    drawn += [source.normal(2**14) for _ in range(8)]
    values = torch.cat(drawn)
    assert len(values.unique()) == values.numel()
    assert stats.kstest(values[-(2**17) :].numpy(), "norm").pvalue > 1e-6


@pytest.mark.parametrize("reason", ["absent", "broken", "wrong", "disabled", "no thread"])
def test_without_a_compiled_form_the_slow_one_goes_on(reason, monkeypatch):
    kernel = fresh()
    if reason == "absent":
        monkeypatch.setitem(sys.modules, "numba", None)
    elif reason == "broken":
        kernel._signature = "nonsense("
    elif reason == "wrong":
        kernel = fresh(agrees=lambda compiled: compiled(1.0) == 3.0)
    elif reason == "disabled":
        monkeypatch.setattr(pytest.importorskip("numba"), "njit", lambda *args, **settings: lambda function: function)
    else:

        def refuse(self):
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        monkeypatch.setattr(compiled, "COMPILE_AFTER", 1)
        assert kernel.after(5) is None
    if reason != "no thread":
        assert not kernel.compile()
    assert kernel.failure
    assert kernel.after(2**30) is None
    monkeypatch.setattr(ziggurat, "KERNEL", kernel)
    assert stats.kstest(SecureNoise().normal(50_001).numpy(), "norm").pvalue > 1e-6


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_waits_for_the_compiler():
    held = threading.Event()

    def compile_slowly():
        with compiled._compiling:
            held.set()
            time.sleep(0.5)

    thread = threading.Thread(target=compile_slowly)
    thread.start()
    held.wait()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        free = compiled._compiling.acquire(timeout=5)
        os._exit(0 if free else 1)
    assert time.monotonic() - started > 0.3
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    thread.join()
    assert compiled._compiling.acquire(timeout=1)  # the parent can compile again
    compiled._compiling.release()


def test_an_exit_waits_for_the_compiler():
    pytest.importorskip("numba")
    code = (
        "from gnomon.randomness import SecureNoise, compiled; compiled.COMPILE_AFTER = 1; SecureNoise().normal(10)\n"
        "import sys; sys.exit(3)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (3, "")


# -- the loop of the door --------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e-30, 1e30])
@pytest.mark.parametrize(("deviation", "divisor"), [(1.0, 256.0), (0.37, 333.3), (1e-20, 7.0), (1e6, 1e-3)])
def test_the_compiled_loop_rounds_as_torch_does(scale, deviation, divisor, monkeypatch):
    pytest.importorskip("numba")
    assert door.KERNEL.after(0) or door.KERNEL.compile(), door.KERNEL.failure
    values = torch.randn(4096, generator=torch.Generator().manual_seed(0)) * scale
    values[:4] = torch.tensor([torch.inf, -torch.inf, torch.nan, 1e-45])
    results = [values.clone(), values.clone()]
    door.add_noise(results[0], deviation, SeededNoise(1), divisor)
    monkeypatch.setattr(door, "KERNEL", fresh())
    door.add_noise(results[1], deviation, SeededNoise(1), divisor)
    assert np.array_equal(*(result.numpy().view(np.int32)[3:] for result in results))
    assert torch.equal(*(result.nan_to_num(7.0) for result in results))


def test_a_loop_that_rounds_once_less_is_refused():
    def fused(drawn, values, deviation, shift, divisor):
        exact = np.longdouble(drawn) * deviation + values
        values[:] = ((exact + shift) - shift).astype(np.float32) / np.float32(divisor)

    assert door._agrees(door.noise_loop)
    assert not door._agrees(fused)


def test_a_source_with_a_wrong_shape_is_refused(monkeypatch):
    class Short(SeededNoise):
        def normal(self, count):
            return super().normal(count - 1)

    if door.KERNEL.after(0) is None:
        door.KERNEL.compile()
    with pytest.raises(RuntimeError, match="size"):
        door.add_noise(torch.zeros(5), 1.0, Short(0), 1.0)
