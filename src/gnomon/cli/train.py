"""`gnomon train`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnomon.cli import ledger, report
from gnomon.cli.settings import INTERRUPTED, add_settings, settings_of
from gnomon.runs.config import recipe
from gnomon.runs.folder import claimed
from gnomon.text import counted, together

if TYPE_CHECKING:
    from gnomon.runs.train import TrainingRun


def add_train(commands: Any) -> None:
    parser = commands.add_parser(
        "train",
        help="train a model and write its privacy statement",
        description="Train a model under differential privacy. Ctrl-C stops after the current step and "
        "still writes everything.",
        epilog="examples:\n"
        "  gnomon train --data digits --target-epsilon 1\n"
        "  gnomon train --data mnist --private 10000 --batch-size 250 --epochs 80 --noise-multiplier 10 "
        "--lr 5 --max-grad-norm 0.01\n"
        "  gnomon train --data npz:patients.npz --dataset-size 20000 --model hospital.models:RiskNet\n"
        "  gnomon train --config runs/demo/config.yaml --out runs/again\n\n"
        "The run folder holds config.yaml, metrics.jsonl, model.safetensors, statement.txt, statement.json\n"
        "and curve.png. Metrics named unprotected/ have no noise: keep them with the data holder.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_train)
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file of settings; flags win over it")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="run folder (default: runs/<data>-<time>)")
    parser.add_argument("--overwrite", action="store_true", help="replace the run that is in the folder")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    ledger.add_flags(parser)
    parser.add_argument("--tensorboard", action="store_true", help="event files in the folder tensorboard of the run")
    report.add_diagnose_flag(parser)
    add_settings(parser)


def _train(args: argparse.Namespace) -> int:
    from gnomon.runs.train import train

    config = settings_of(args, recipe)
    book = None if config.insecure_noise_seed is not None else ledger.chosen(args.ledger)
    named = Path(config.data.removeprefix("npz:")).stem
    with claimed(named) if args.out is None else nullcontext(args.out) as out:
        run = train(
            config,
            out,
            overwrite=args.overwrite,
            progress=not args.quiet,
            ledger=book,
            dataset=args.data_id,
            checkpoint_every=args.checkpoint_every,
            tensorboard=args.tensorboard,
            diagnose_every=args.diagnose,
            diagnose_public_only=args.diagnose_public_only,
        )
    return tell(run)


def tell(run: TrainingRun) -> int:
    """How a run went, for people; the exit code."""
    out = run.folder
    last = run.result.history[-1] if run.result.history else {}
    if run.result.stopped != "finished":
        reasons = {"interrupted": "stopped by Ctrl-C", "budget": "stopped at the budget"}
        planned = counted(run.trainer.mechanism.steps, "step")
        print(f"{reasons[run.result.stopped]} after {run.result.steps} of {planned}")
    if "validation/accuracy" in last:
        print(f"test accuracy  {100 * last['validation/accuracy']:.1f} %")
    alone = run.folder / "public-only.json"
    if alone.exists() and "accuracy" in (scores := json.loads(alone.read_text())):
        share = f"{100 * scores['accuracy']:.1f} % without any private record, epsilon 0"
        print(f"public alone   {share} ({scores['public records']} public records)")
    statement = run.trainer.statement()
    claim = "privacy      " if statement.guarantee else "NO GUARANTEE "
    print(f"{claim}  {run.result.epsilon!r}")
    if (total := run.trainer.ledger_session.total(statement.delta)) is not None:
        word = ", if all settings were fixed before the first result was seen" if total.counted < total.epsilon else ""
        print(f"on these data  {total.counted!r}, {together(total.runs)}{word}")
    if left_out := _left_out(run.result.history):
        print(f"unprotected    {100 * left_out:.2g} % of the records drawn were not finite and counted for nothing")
    for caveat in statement.caveats:
        print(f"caveat         {caveat}")
    print(f"statement      {out / 'statement.txt'}")
    if run.result.history:
        print(f"picture        {out / 'curve.png'}")
    print(f"model          {out / 'model.safetensors'}")
    if run.result.stopped == "interrupted" and run.trainer.ledger_session.ledger is not None:
        print(f"to go on       gnomon resume {out}")
    return INTERRUPTED if run.result.stopped == "interrupted" else 0


def _left_out(history: Sequence[Mapping[str, Any]]) -> float:
    """The share of records that counted for nothing, over all epochs. Unprotected."""
    shares = [found for record in history if (found := record.get("unprotected/left_out")) is not None]
    return sum(shares) / len(shares) if shares else 0.0
