"""Run the fuzzer: `python -m tests.fuzz SEED ...` repeats cases; `--count N` or `--minutes M` tries new seeds."""

from __future__ import annotations

import argparse
import secrets
import sys
import time
import traceback
from collections.abc import Iterator

import torch

from tests.fuzz.checks import Broken, Tally, check


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("seeds", type=int, nargs="*", help="cases to repeat, with the full traceback of a failure")
    parser.add_argument("--count", type=int, help="number of new cases to try (default: 100)")
    parser.add_argument("--minutes", type=float, help="time for which to try new cases")
    parser.add_argument("--start", type=int, help="first new seed (default: random)")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    tally, failed, started = Tally(), 0, time.monotonic()
    for seed in args.seeds or _fresh(args.start, args.count, args.minutes, started):
        try:
            check(seed, tally)
        except Broken as error:
            failed += 1
            print(error, flush=True)
            if args.seeds:
                traceback.print_exception(error.__cause__)
    seconds = time.monotonic() - started
    print(
        f"{tally.cases + failed} models, {tally.neighbours} neighbours, {failed} failed, {seconds:.0f} s; "
        f"largest change {tally.worst:.7f} C (seed {tally.worst_seed}), clipped by layer {tally.worst_by_layer:.7f} C; "
        f"{len(tally.unsteady)} decided by rounding {tally.unsteady[:5]}, {tally.worst_unsteady:.7f} C"
    )
    print(", ".join(f"{name} {count}" for name, count in sorted(tally.by_method.items())))
    if failed:
        print("add the failed seeds to tests/fuzz/seeds.txt, with the reason, when the failure is fixed")
    return 1 if failed else 0


def _fresh(start: int | None, count: int | None, minutes: float | None, started: float) -> Iterator[int]:
    seed = secrets.randbelow(2**31) if start is None else start
    count = 100 if count is None and minutes is None else count
    made = 0
    while (count is None or made < count) and (minutes is None or time.monotonic() < started + 60 * minutes):
        yield seed + made
        made += 1


if __name__ == "__main__":
    sys.exit(main())
