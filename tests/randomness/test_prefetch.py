"""Noise that is drawn ahead is handed out once, to one process, and disappears with its source."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from torch import nn

import gnomon
from gnomon.accounting import FullBatch
from gnomon.randomness import SecureNoise, normals, sources, ziggurat
from gnomon.randomness.prefetch import Prefetch
from tests.helpers import draws_after_fork
from tests.randomness import generators
from tests.randomness.generators import FixedStream, Prefetched, prefetch_at_once, wait_for

FORKS = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    prefetch_at_once(monkeypatch)
    gc.collect()
    wait_for(lambda: workers() == 0)  # those of earlier tests


def fork(function):
    return FORKS[0](FORKS[1](function))


def workers() -> int:
    return sum(thread.name == "gnomon-noise" for thread in threading.enumerate())


def full(source_class=Prefetched):
    """Return a source whose buffer is full."""
    source = source_class()
    source.normal(1)
    wait_for(lambda: source.ready() >= sources.CHUNKS_AHEAD)
    return source


@pytest.fixture
def filled(monkeypatch):
    """The arrays that background threads have filled."""
    arrays, plain = [], normals.Normals.fill

    def fill(self, values):
        plain(self, values)
        if threading.current_thread().name == "gnomon-noise":
            arrays.append(values)

    monkeypatch.setattr(normals.Normals, "fill", fill)
    return arrays


# -- no number twice -------------------------------------------------------------------------------------


def repeats(source, threads: int = 4, rounds: int = 60) -> int:
    """Count the numbers that several threads got from one source more than once, in draws of all sizes."""
    drawn: list[torch.Tensor] = []

    def consume(number: int) -> None:
        for turn in range(rounds):
            count = (sources.CHUNK, 1, 77, 3 * sources.CHUNK + 5, sources.CHUNK - 1)[(turn + number) % 5]
            drawn.append(source.normal(count).clone())

    consumers = [threading.Thread(target=consume, args=(number,)) for number in range(threads)]
    for one in consumers:
        one.start()
    for one in consumers:
        one.join()
    values = torch.cat(drawn)
    return values.numel() - len(values.unique())


class Twice(Prefetch):
    """A broken buffer: a chunk that was handed out stays in it."""

    def take(self):
        chunk = super().take()
        if chunk is not None:
            self._ready.put(chunk.copy())
        return chunk


def test_no_number_is_handed_out_twice_to_several_threads(monkeypatch):
    source = full()
    assert repeats(source) == 0
    assert source._state._prefetch.failure is None
    source.close()
    monkeypatch.setattr(sources, "Prefetch", Twice)  # control
    assert repeats(full()) > 0


def test_numbers_come_from_the_buffer(filled):
    source = full()
    drawn = torch.cat([source.normal(count) for count in (5, sources.CHUNK, 3 * sources.CHUNK, 70)])
    ahead = torch.from_numpy(np.concatenate(filled))
    assert torch.isin(drawn, ahead).all()


def test_a_chunk_is_handed_out_without_a_copy_and_smaller_draws_are_copied(filled):
    source = full()
    addresses = {array.ctypes.data for array in filled}
    assert source.normal(sources.CHUNK).data_ptr() in addresses
    part = source.normal(10)
    assert part.untyped_storage().nbytes() == 80  # what is stored of it holds no other number


def test_a_source_draws_when_its_lock_is_held():
    source = full()
    with source._state._lock:
        drawn = [SecureNoise.normal(source, count) for count in (3, sources.CHUNK, 2 * sources.CHUNK)]
        assert len(source.uniform(4)) == 4
    drawn.append(source.normal(50))
    values = torch.cat(drawn)
    assert len(values.unique()) == values.numel()


# -- when a thread starts ----------------------------------------------------------------------------------


def test_small_models_and_one_off_sources_never_start_a_thread(monkeypatch):
    before = workers()
    monkeypatch.setattr(sources, "PREFETCH_AFTER", 2**14)
    small, once = SecureNoise(), SecureNoise()
    for _ in range(2000):
        small.normal(26)
    for _ in range(40):
        small.normal(sources.CHUNK - 1)
    once.normal(sources.CHUNK)
    small.uniform(2**20)
    assert workers() == before
    for _ in range(4):  # control: a source from which much is drawn starts one
        once.normal(sources.CHUNK)
    assert workers() == before + 1
    once.close()


def test_one_core_starts_no_thread(monkeypatch):
    before = workers()
    monkeypatch.setattr(sources, "usable_cores", lambda: 1)
    source = SecureNoise()
    for _ in range(10):
        source.normal(sources.CHUNK)
    assert workers() == before


def test_a_system_without_threads_is_drawn_for_on_demand(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Prefetch, "start", refuse)
    source = SecureNoise()
    assert len(torch.cat([source.normal(sources.CHUNK) for _ in range(5)]).unique()) == 5 * sources.CHUNK


def test_the_buffer_is_bounded_and_a_full_one_sleeps(filled):
    source = full()
    time.sleep(0.1)
    count = len(filled)
    assert count == sources.CHUNKS_AHEAD + (len(source._state._rest) > 0)
    time.sleep(0.2)
    assert len(filled) == count
    source.normal(sources.CHUNK)  # consumption wakes the thread
    wait_for(lambda: len(filled) == count + 1)


def test_without_a_compiled_ziggurat_no_thread_starts(monkeypatch):
    monkeypatch.setattr(ziggurat, "KERNEL", generators.NotCompiled())
    source = SecureNoise()
    for _ in range(10):
        source.normal(sources.CHUNK)
    assert workers() == 0


@fork
def test_the_reserve_of_small_draws_is_neither_repeated_nor_inherited():
    source = SecureNoise()
    drawn = torch.cat([source.normal(count) for _ in range(100) for count in (26, 1, 256, 257, 0)])
    assert len(drawn.unique()) == len(drawn)
    rest = source._state._rest
    assert len(rest)
    theirs, ours = draws_after_fork(source)
    assert not torch.isin(theirs, torch.cat([ours, torch.from_numpy(rest)])).any()
    rest = source._state._rest  # what the draw above has left
    assert in_child(lambda: not rest.any())
    source.close()
    assert not rest.any()
    source.normal(26)
    assert not len(source._state._rest)  # a closed source keeps nothing


# -- forks -----------------------------------------------------------------------------------------------


@fork
def test_a_fork_inherits_no_number_and_no_key():
    source = full()
    theirs, ours = draws_after_fork(source)
    assert len(theirs) == 16
    later = torch.cat([source.normal(sources.CHUNK) for _ in range(sources.CHUNKS_AHEAD + 1)])
    assert not torch.isin(theirs, torch.cat([ours, later])).any()


@fork
def test_a_source_that_does_not_notice_the_fork_repeats_itself(monkeypatch):
    # control of the test above
    source = full()
    state = source._state
    monkeypatch.setattr(sources, "_live", set())
    monkeypatch.setattr(sources, "process", lambda: state.process)
    monkeypatch.setattr(generators, "process", lambda: state.process)
    child, parent = draws_after_fork(source)
    assert torch.equal(child, parent)


def in_child(check) -> bool:
    """Run a check in a forked child and return what it returned; a child that hangs is ended after ten seconds."""
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(10)
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@fork
def test_a_child_overwrites_the_buffer_it_inherited(filled):
    source = full()
    source.normal(5)
    unused = [array for array in filled if array.any()]
    state = source._state
    rest = state._rest

    def erased():
        gone = not any(array.any() for array in unused if not np.shares_memory(array, rest)) and not rest.any()
        return gone and "_encryptor" not in state._normals._stream.__dict__ and not state._prefetch._ready.qsize()

    assert in_child(erased)
    assert all(array.any() for array in unused)  # and not that of its parent
    sources._live.discard(state)  # control
    assert not in_child(erased)


@fork
def test_a_lock_that_is_held_during_the_fork_does_not_stop_the_child():
    source = full()
    state = source._state
    held, done = threading.Event(), threading.Event()

    def hold():
        with state._lock:
            held.set()
            done.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    assert in_child(lambda: len(SecureNoise.normal(source, 7)) == 7 and source._state is not state)
    assert not in_child(lambda: state._lock.acquire(timeout=0.2))  # control: nobody in the child would release it
    assert in_child(lambda: source.close() is None)
    done.set()
    holder.join()


@fork
def test_a_child_can_draw_ahead_too():
    source = full()

    def enough():
        source.normal(sources.CHUNK)
        wait_for(lambda: source.ready() > 0)
        return workers() == 1

    assert in_child(enough)


@fork
def test_a_draw_during_which_a_signal_handler_forks_is_repeated(monkeypatch):
    source = SecureNoise()
    source.normal(1)
    inherited, plain, results = source._state, sources._State.normal, []

    def interrupted(self, count):
        values = plain(self, count)
        if self is inherited:
            results.append(values)
            self.process = (-1, -1)  # as the child of a fork in the middle of this draw would see it
        return values

    monkeypatch.setattr(sources._State, "normal", interrupted)
    drawn = source.normal(8)
    assert len(results) == 1
    assert not np.isin(drawn.numpy(), results[0]).any()


# -- copies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda source: pickle.loads(pickle.dumps(source))])
def test_a_copy_is_a_fresh_source(copied):
    source = full()
    twin = copied(source)
    assert type(twin) is type(source)
    assert twin._state is None
    theirs = torch.cat([twin.normal(sources.CHUNK) for _ in range(20)])
    ours = torch.cat([source.normal(sources.CHUNK) for _ in range(20)])
    assert not torch.isin(theirs, ours).any()
    broken = SecureNoise()  # control: a copy of the attributes
    broken.__dict__ = source.__dict__
    wait_for(lambda: source.ready() >= sources.CHUNKS_AHEAD)
    assert broken._state._prefetch is source._state._prefetch


def test_what_is_pickled_holds_no_number():
    assert len(pickle.dumps(full())) < 200
    assert pickle.dumps(full()) == pickle.dumps(Prefetched())


# -- the end ---------------------------------------------------------------------------------------------


def test_closing_overwrites_what_was_not_handed_out_and_nothing_else(filled):
    before = workers()
    source = full()
    own = source.normal(sources.CHUNK)
    part = source.normal(9)
    assert sum(array.any() for array in filled) >= sources.CHUNKS_AHEAD  # control: there is something to overwrite
    source.close()
    wait_for(lambda: workers() == before)
    address = own.data_ptr()
    for array in filled:
        if array.ctypes.data == address:
            assert array.all()
        else:
            assert array[:9].any() or not array.any()
            assert not array[sources.CHUNK // 2 :].any()
    assert own.all()
    assert part.all()
    assert len(SecureNoise.normal(source, sources.CHUNK).unique()) == sources.CHUNK  # it still draws, on demand
    assert workers() == before


def test_a_source_that_is_collected_ends_its_thread(filled):
    before = workers()
    source = full()
    assert workers() == before + 1
    loop = [source]
    loop.append(loop)
    del source, loop
    assert workers() == before + 1
    gc.collect()
    wait_for(lambda: workers() == before)
    assert not any(array[sources.CHUNK // 2 :].any() for array in filled)


def test_zeros_are_never_handed_out_when_a_source_is_closed_during_draws():
    for _ in range(10):
        source, drawn = full(), []
        consumer = threading.Thread(
            target=lambda source=source, drawn=drawn: drawn.extend(
                SecureNoise.normal(source, count) for count in (sources.CHUNK, 100, 5 * sources.CHUNK) * 4
            )
        )
        consumer.start()
        source.close()
        consumer.join()
        values = torch.cat(drawn)
        assert values.all()
        assert len(values.unique()) == values.numel()


EXIT = """
import sys
from gnomon.randomness import SecureNoise, sources, ziggurat
assert ziggurat.KERNEL.compile()
sources.PREFETCH_AFTER, sources.usable_cores = sources.CHUNK, lambda: 2
source = SecureNoise()
for _ in range(int(sys.argv[1])):
    source.normal(sources.CHUNK)
assert source._state._prefetch is not None
{end}
"""


@pytest.mark.parametrize(
    ("end", "draws"), [("", 1), ("sys.exit(0)", 30), ("keep = [source]; keep.append(keep); del source", 30)]
)
def test_the_interpreter_exits_without_a_hang(end, draws):
    started = time.monotonic()
    code = EXIT.format(end=end)
    done = subprocess.run(
        [sys.executable, "-c", code, str(draws)], check=False, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - started < 30


DISK = """
import sys
written = []
def hook(event, arguments):
    if event == "open" and (set(str(arguments[1] or "")) & set("wax+") or (arguments[2] or 0) & 3):
        written.append(arguments[0])
import numba, torch
from gnomon.randomness import SecureNoise, sources, ziggurat
sources.PREFETCH_AFTER, sources.usable_cores = sources.CHUNK, lambda: 2
sys.addaudithook(hook)
assert ziggurat.KERNEL.compile(), ziggurat.KERNEL.failure
source = SecureNoise()
for _ in range(40):
    source.normal(sources.CHUNK)
source.close()
{also}
print(*written)
"""


@pytest.mark.parametrize("also", ["", "torch.save(source.normal(3), sys.argv[1])"])
def test_nothing_is_written_to_disk(also, tmp_path):
    pytest.importorskip("numba")
    environment = {**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", DISK.format(also=also), str(tmp_path / "saved")]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=120, env=environment, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(list(tmp_path.iterdir())) == bool(also)  # the control writes
    if not also:
        assert done.stdout.strip() == ""


# -- failures --------------------------------------------------------------------------------------------


def test_a_worker_that_dies_leaves_a_source_that_draws_on_demand(monkeypatch):
    plain, drawn_ahead = normals.Normals.fill, []

    def fill(self, values):
        if threading.current_thread().name == "gnomon-noise":
            if len(drawn_ahead) == 3:
                values[: len(values) // 2] = 1.0  # a chunk that is half done
                raise MemoryError("planted")
            drawn_ahead.append(None)
        plain(self, values)

    monkeypatch.setattr(normals.Normals, "fill", fill)
    before = workers()
    source = SecureNoise()
    source.normal(sources.CHUNK)
    prefetch = source._state._prefetch
    wait_for(lambda: prefetch.failure is not None and workers() == before)
    values = torch.cat([source.normal(count) for count in (sources.CHUNK, 10, 3 * sources.CHUNK)])
    assert isinstance(prefetch.failure, MemoryError)
    assert len(values.unique()) == values.numel()
    assert not (values == 1.0).any()
    assert values.all()


def test_a_consumer_does_not_wait_for_a_thread_that_is_stuck(monkeypatch):
    plain, go_on = normals.Normals.fill, threading.Event()

    def fill(self, values):
        if threading.current_thread().name == "gnomon-noise":
            go_on.wait(20)
        plain(self, values)

    monkeypatch.setattr(normals.Normals, "fill", fill)
    source = SecureNoise()
    started = time.monotonic()
    drawn = [source.normal(count) for count in (sources.CHUNK, sources.CHUNK, 5, 4 * sources.CHUNK)]
    assert time.monotonic() - started < 5
    assert sum(map(len, drawn)) == 6 * sources.CHUNK + 5
    go_on.set()
    source.close()


def test_a_prefetch_hands_out_what_its_stream_gives():
    expected = np.empty(64)
    normals.Normals(FixedStream(3)).fill(expected)
    prefetch = Prefetch(normals.Normals(FixedStream(3)), size=64, depth=1)
    prefetch.start()
    wait_for(lambda: prefetch._ready.qsize() == 1)
    assert np.array_equal(prefetch.take(), expected)
    prefetch.close(wait=5)


# -- in training -----------------------------------------------------------------------------------------


def test_a_trainer_releases_noise_that_was_drawn_ahead_and_never_repeats_it():
    model = nn.Linear(2 * sources.CHUNK, 1).double()
    nn.init.zeros_(model.weight)
    trainer = gnomon.Trainer(
        model, lambda out, target: 0 * out.sum(1), torch.optim.SGD(model.parameters(), lr=1.0), sampler=FullBatch(),
        expected_batch_size=1, noise_multiplier=1.0, target_delta=1e-5, steps=6, progress=False,
    )  # fmt: skip
    data = torch.zeros(2, 2 * sources.CHUNK, dtype=torch.float64), torch.zeros(2)
    rows = []
    for inputs, targets in trainer.batches(data):
        trainer.step(inputs, targets)
        rows.append(model.weight.detach().flatten().clone())
    assert trainer.noise._state._prefetch is not None
    noise = torch.stack(rows).diff(dim=0)
    cosines = torch.corrcoef(noise) - torch.eye(len(noise), dtype=torch.float64)
    assert cosines.abs().max() < 6 / (2 * sources.CHUNK) ** 0.5
    assert abs(noise.std() - 1) < 0.03
    trainer.noise.close()
