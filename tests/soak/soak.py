"""Kill runs repeatedly at random moments, and compare the ledger with what was released.

Each worker is a real process that trains a small model through the code of `gnomon train` and `gnomon resume`, and is
ended by SIGKILL. Before noise is drawn for a release, the worker writes one byte to its own log, in one system call
that a kill cannot undo. The log therefore never counts fewer steps than were released, and the ledger must never count
fewer steps than the log.

    python tests/soak/soak.py --kills 200 --report FILE
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gnomon.ledger import Ledger
from gnomon.release import SecureNoise
from gnomon.runs import train as runs
from gnomon.runs.builders import trainer as building
from gnomon.runs.config import TrainConfig
from gnomon.runs.resume import resume
from gnomon.training.checkpoint import NAME, read_checkpoint

STEPS = 400
BLOCK = 16
CONFIG = TrainConfig(
    data="digits", model="logistic", sampler="full", epochs=float(STEPS), noise_multiplier=500.0, target_delta=1e-5,
    optimizer="adam", lr=0.01, ema_decay=0.9,
)  # fmt: skip
DRAWS = 2
"""Number of draws of noise in a step: one for the weight and one for the bias."""


@dataclass
class Report:
    """The result of a soak test."""

    kills: int = 0
    starts: int = 0
    resumes: int = 0
    finished: int = 0
    released: int = 0
    reserved: int = 0
    under_reports: int = 0
    largest_over_report: int = 0
    """Largest number of reserved but unreleased steps that one kill added."""
    over_reports_above_a_block: int = 0
    killed_before_the_first_checkpoint: int = 0
    damaged_checkpoints: int = 0
    damaged_ledgers: int = 0
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        bad = self.under_reports, self.over_reports_above_a_block, self.damaged_checkpoints, self.damaged_ledgers
        return not any(bad) and not self.failures


class Logged(SecureNoise):
    """Secure noise that writes a byte to a log before each draw."""

    log = -1

    def normal(self, count):
        os.write(Logged.log, b".")
        return super().normal(count)


def worker(place: Path, out: Path, late: bool) -> None:
    """Start a run, or resume the one in the folder. With `late`, a planted bug, steps are charged too late."""
    Logged.log = os.open(place / f"{out.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    assert building.SecureNoise is SecureNoise  # where runs take their noise from
    building.SecureNoise = Logged
    if late:
        _pay_late()
    ledger = Ledger(place / "ledger.sqlite", block=BLOCK)
    if (out / NAME).exists():
        resume(out, ledger=ledger, progress=False)
    else:
        runs.train(CONFIG, out, overwrite=True, progress=False, ledger=ledger, dataset=out.name, checkpoint_every=7)


def _pay_late() -> None:
    """Plant a bug: a step is charged only after another block of steps was released."""
    from gnomon.ledger.session import LedgerSession

    real = LedgerSession.charge
    waiting: list[LedgerSession] = []

    def charge(self):
        waiting.append(self)
        if len(waiting) > BLOCK:
            real(waiting.pop(0))

    LedgerSession.charge = charge


def start(place: Path, out: Path, late: bool) -> int:
    """Start a worker in a forked process, and return its process id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        with (place / "errors").open("a") as errors:
            os.dup2(errors.fileno(), 2)
            os.dup2(errors.fileno(), 1)
            worker(place, out, late)
        code = 0
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def soak(
    kills: int, *, seed: int = 0, workers: int = 2, longest: float = 0.5, late: bool = False, say=lambda text: None
) -> Report:
    """Kill `kills` workers, `workers` at a time on one ledger, and compare the ledger with the log after each round."""
    chance, report, began = random.Random(seed), Report(), time.monotonic()
    place = Path(tempfile.mkdtemp(prefix="gnomon-soak-"))
    outs = [place / f"run-{i}" for i in range(workers)]
    spare = dict.fromkeys(outs, 0)
    # what is imported and read now, workers need not import and read: they start in a moment
    runs.train(dataclasses.replace(CONFIG, epochs=1.0, insecure_noise_seed=0), place / "first", progress=False)
    while report.kills < kills:
        report.resumes += sum((out / NAME).exists() for out in outs)
        report.killed_before_the_first_checkpoint += sum(out.exists() and not (out / NAME).exists() for out in outs)
        children = {out: start(place, out, late) for out in outs}
        report.starts += workers
        for out, child in children.items():
            if chance.random() < 0.75:  # most often in the middle of training, else anywhere in its start
                _wait_for_a_step(place / f"{out.name}.log", child)
            time.sleep(chance.uniform(0, longest))
            os.kill(child, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            report.kills += status == -signal.SIGKILL
            report.finished += status == 0
            if status not in (0, -signal.SIGKILL):
                report.failures.append((place / "errors").read_text()[-500:])
        _compare(place, outs, report, spare)
        for out in outs:  # a run that has ended makes room for the next
            if out.exists() and (out / "statement.txt").exists() and not (out / NAME).exists():
                shutil.rmtree(out)
        say(f"{report.kills}/{kills} kills, {report.released} released, {report.reserved} reserved")
        if report.failures or report.damaged_ledgers:
            break
    report.seconds = round(time.monotonic() - began, 1)
    if report.passed:
        shutil.rmtree(place)
    return report


def _wait_for_a_step(log: Path, child: int) -> None:
    """Wait until the child has released a step or has ended, at most 30 seconds."""
    before, late = _size(log), time.monotonic() + 30
    while _size(log) == before and time.monotonic() < late:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        time.sleep(0.005)


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def _compare(place: Path, outs: list[Path], report: Report, spare: dict[Path, int]) -> None:
    """Compare ledger and log for each run folder; `spare` holds steps that were reserved but not released before."""
    try:
        ledger = Ledger(place / "ledger.sqlite")
        ledger.verify()
        entered = list(ledger.state().runs.values())
        ledger.close()
    except ValueError as error:
        report.damaged_ledgers += 1
        report.failures.append(str(error))
        return
    report.released = report.reserved = 0
    for out in outs:
        released = -(-_size(place / f"{out.name}.log") // DRAWS)
        reserved = sum(run.reserved for run in entered if run.dataset == f"name:{out.name}")
        report.released += released
        report.reserved += reserved
        report.under_reports += reserved < released
        added, spare[out] = reserved - released - spare[out], reserved - released
        report.largest_over_report = max(report.largest_over_report, added)
        report.over_reports_above_a_block += added > BLOCK
        if (out / NAME).exists():
            try:
                read_checkpoint(out)
            except ValueError as error:
                report.damaged_checkpoints += 1
                report.failures.append(str(error))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, help="number of kills (default: 200)")
    parser.add_argument("--seed", type=int, default=None, help="seed of the times of the kills (default: random)")
    parser.add_argument("--report", type=Path, help="file for the report, as JSON")
    args = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if args.seed is None else args.seed
    report = soak(args.kills, seed=seed, say=lambda text: print(text, flush=True))
    found = asdict(report) | {"seed": seed, "block": BLOCK, "passed": report.passed}
    text = json.dumps(found, indent=2) + "\n"
    print(text)
    if args.report:
        args.report.write_text(text)
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
