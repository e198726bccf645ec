"""Steps of DP-SGD with JAX-Privacy, beside plain SGD in JAX; run by steps.py --jax under the interpreter of JAX.

    python benchmarks/jax_steps.py cnn --batch 250 --seconds 10        (times, as JSON)
    python benchmarks/jax_steps.py cnn --batch 250 --memory private    (peak memory in bytes, as JSON)

The two steps take turns in this process. The script needs jax and jax-privacy only.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CLIP, LR = 0.1, 1e-3


def cnn(params: Any, x: Any) -> Any:
    """Return the logits of the CNN of 26,010 parameters."""
    import jax

    def convolution(x: Any, weight: Any, bias: Any, padding: int) -> Any:
        pads = [(padding, padding)] * 2
        return jax.nn.relu(jax.lax.conv_general_dilated(x, weight, (2, 2), pads) + bias[:, None, None])

    def pool(x: Any) -> Any:
        return jax.lax.reduce_window(x, -float("inf"), jax.lax.max, (1, 1, 2, 2), (1, 1, 1, 1), "VALID")

    x = pool(convolution(x, *params[0], 3))
    x = pool(convolution(x, *params[1], 0))
    return mlp(params[2:], x.reshape(len(x), -1))


def mlp(params: Any, x: Any) -> Any:
    """Return the logits of linear layers with ReLU between them."""
    import jax

    for weight, bias in params[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    return x @ params[-1][0] + params[-1][1]


MODELS: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, ...], list[tuple[tuple[int, ...], int]]]] = {
    "cnn": (cnn, (1, 28, 28), [((16, 1, 8, 8), 16), ((32, 16, 4, 4), 32), ((512, 32), 32), ((32, 10), 10)]),
    "mlp": (mlp, (784,), [((784, 1024), 1024), ((1024, 1024), 1024), ((1024, 10), 10)]),
}
"""The function, the shape of a record, and the shapes of weights and biases of each model."""


def steps(name: str, batch: int, microbatch: int | None) -> dict[str, Callable[[], object]]:
    """Return a step of plain SGD and a private one, both compiled, with the given size of microbatches."""
    import jax
    import jax_privacy
    import optax
    from jax import numpy as jnp

    function, shape, layers = MODELS[name]
    keys = iter(jax.random.split(jax.random.key(0), 2 + len(layers)))
    params = [(0.05 * jax.random.normal(next(keys), weight), jnp.zeros(bias)) for weight, bias in layers]
    x = jax.random.normal(next(keys), (batch, *shape))
    y = jax.random.randint(next(keys), (batch,), 0, 10)

    def loss(params: Any, records: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(function(params, records[0]), records[1]).mean()

    clipped = jax_privacy.clipped_grad(loss, l2_clip_norm=CLIP, normalize_by=batch, microbatch_size=microbatch)
    stddev = CLIP / batch  # noise multiplier 1
    noise = jax_privacy.noise_addition.gaussian_privatizer(stddev=stddev, prng_key=jax.random.key(1))

    @jax.jit
    def plain(params: Any, state: Any, records: Any) -> Any:
        gradient = jax.grad(loss)(params, records)
        return jax.tree.map(lambda p, g: p - LR * g, params, gradient), state

    @jax.jit
    def private(params: Any, state: Any, records: Any) -> Any:
        noisy, state = noise.update(clipped(params, records), state)
        return jax.tree.map(lambda p, g: p - LR * g, params, noisy), state

    def repeated(step: Callable[[Any, Any, Any], Any]) -> Callable[[], object]:
        current = (params, noise.init(params))

        def run() -> None:
            nonlocal current
            current = jax.block_until_ready(step(*current, (x, y)))

        return run

    return {"plain": repeated(plain), "private": repeated(private)}


def fastest_microbatch(name: str, batch: int) -> int | None:
    """Return the fastest size of microbatches: the whole batch, one record, or about 16 records.

    On a CPU the default, the whole batch, can be fifty times slower than the best size.
    """
    sixteen = max(size for size in range(1, 17) if batch % size == 0)
    seconds: dict[int | None, float] = {}
    for size in (1, sixteen, None):
        step = steps(name, batch, size)["private"]
        step()  # compiles
        started = time.perf_counter()
        step()
        seconds[size] = time.perf_counter() - started
    return min(seconds, key=seconds.__getitem__)


def times(name: str, batch: int, seconds: float) -> dict[str, float | None]:
    """Return milliseconds of both steps, and the median of the ratios within a turn."""
    microbatch = fastest_microbatch(name, batch)
    both = steps(name, batch, microbatch)
    samples: dict[str, list[tuple[float, float]]] = {key: [] for key in both}
    for step in both.values():
        step()  # compiles
    started = time.perf_counter()
    while len(samples["plain"]) < 3 or time.perf_counter() - started < seconds:
        for key, step in both.items():
            step()
            wall, cpu = time.perf_counter(), time.process_time()
            step()
            samples[key].append((time.perf_counter() - wall, time.process_time() - cpu))
    pairs = list(zip(samples["private"], samples["plain"], strict=True))
    return {
        "milliseconds": 1e3 * statistics.median(wall for wall, _ in samples["private"]),
        "cpu_milliseconds": 1e3 * statistics.median(cpu for _, cpu in samples["private"]),
        "base_milliseconds": 1e3 * statistics.median(wall for wall, _ in samples["plain"]),
        "ratio": statistics.median(a[0] / b[0] for a, b in pairs),
        "cpu_ratio": statistics.median(a[1] / b[1] for a, b in pairs),
        "turns": len(pairs),
        "microbatch_size": microbatch,
    }


def peak(name: str, batch: int, microbatch: int | None, key: str) -> int:
    """Return the peak memory of three steps, in bytes above the memory before, with imports and without compilation."""
    import jax
    import jax_privacy  # noqa: F401

    jax.block_until_ready(jax.numpy.ones((64, 64)) @ jax.numpy.ones((64, 64)))
    before = _status("VmRSS")
    step = steps(name, batch, microbatch)[key]
    step()
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    for _ in range(3):
        step()
    return _status("VmHWM") - before


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(key)).split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS, help="the model")
    parser.add_argument("--batch", type=int, required=True, help="records in a batch")
    parser.add_argument("--seconds", type=float, default=10.0, help="time for all turns (default: 10)")
    parser.add_argument("--threads", type=int, default=1, help="processors to use (default: 1)")
    parser.add_argument("--memory", choices=("plain", "private"), help="measure the peak memory of this step instead")
    parser.add_argument("--microbatch", type=int, help="records in a microbatch, with --memory (default: all)")
    args = parser.parse_args()
    # XLA has no option that limits all its threads, so the process is limited to some processors, before jax starts.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    os.environ["JAX_PLATFORMS"] = "cpu"
    if args.memory:
        print(json.dumps({"memory": peak(args.model, args.batch, args.microbatch, args.memory)}))
    else:
        print(json.dumps(times(args.model, args.batch, args.seconds)))


if __name__ == "__main__":
    main()
