"""The command `gnomon train`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnomon.cli.ledger_flags import add_ledger_flags, chosen_ledger, warn_if_new
from gnomon.cli.plan import public_score, show_plan
from gnomon.cli.settings import INTERRUPTED, add_flag_groups, add_run_flags, add_settings, settings_of
from gnomon.errors import SettingError
from gnomon.runs.config import default_settings
from gnomon.runs.folder import claimed
from gnomon.text import counted, together

if TYPE_CHECKING:
    from gnomon.runs.config import TrainConfig
    from gnomon.runs.train import TrainingRun


def add_command(commands: Any) -> None:
    """Add the command to the parser of all commands."""
    parser = commands.add_parser(
        "train",
        usage="gnomon train [flags]",
        help="train a model and write its privacy statement",
        description="Train a model under differential privacy. Ctrl-C stops after the current step and still writes "
        "all files.",
        epilog="examples:\n"
        "  gnomon train --data digits --target-epsilon 1\n"
        "  gnomon train --data mnist --private-records 10000 --batch-size 250 --epochs 80 --noise-multiplier 10 "
        "--lr 5 --max-grad-norm 0.01\n"
        "  gnomon train --data npz:patients.npz --dataset-size 20000 --model hospital.models:RiskNet\n"
        "  gnomon train --config runs/demo/config.yaml --out runs/again\n\n"
        "The run folder holds config.yaml, metrics.jsonl, model.safetensors, statement.txt, statement.json\n"
        "and curve.png. Metrics named unprotected/ have no noise: keep them with the data holder.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_train)
    groups = add_flag_groups(parser)
    add_settings(parser, groups)
    groups["everyday"].add_argument(
        "--out", type=Path, metavar="FOLDER", help="run folder (default: runs/<data>-<time>)"
    )
    add_run_flags(groups["run"], overwrite="replace the run in the folder")
    groups["run"].add_argument(
        "--tensorboard", action="store_true", help="write event files to the folder tensorboard of the run"
    )
    groups["run"].add_argument(
        "--diagnose",
        type=int,
        nargs="?",
        const=20,
        metavar="N",
        help="write unprotected diagnostics of every N-th step (20 without a number) to diagnostics.jsonl",
    )
    groups["run"].add_argument(
        "--diagnose-public-only",
        action="store_true",
        help="the same without reading a private record: nothing in diagnostics.jsonl is unprotected",
    )
    groups["run"].add_argument(
        "--checkpoint-every",
        type=int,
        metavar="N",
        help="steps between two checkpoints (default: an epoch, at least 16)",
    )
    groups["run"].add_argument(
        "--dp-sgd-beside",
        action="store_true",
        help="after a recipe, also train plain DP-SGD at the same epsilon, into the folder dp-sgd of the run; it reads "
        "the same records again and is charged as a run of its own",
    )
    add_ledger_flags(groups["ledger"])


def _train(args: argparse.Namespace) -> int:
    from gnomon.runs.builders.preparation import plain_dp_sgd, refuse_own_settings
    from gnomon.runs.train import train

    config = settings_of(args, default_settings)
    if args.dp_sgd_beside and config.recipe is None:
        raise SettingError.with_message(
            "dp-sgd-beside needs a recipe: set --recipe, or train DP-SGD in a run of its own",
            name="dp-sgd-beside",
            value=True,
        )
    if config.recipe is not None:
        refuse_own_settings(config.recipe, vars(args))  # also those that are given with their default values
    ledger = None if config.insecure_noise_seed is not None else chosen_ledger(args.ledger)
    with claimed(config.data_name) if args.out is None else nullcontext(args.out) as out:
        run = train(
            config,
            out,
            overwrite=args.overwrite,
            progress=not args.quiet,
            ledger=ledger,
            dataset=args.data_id,
            checkpoint_every=args.checkpoint_every,
            tensorboard=args.tensorboard,
            diagnose_every=args.diagnose,
            diagnose_public_only=args.diagnose_public_only,
            on_start=lambda: warn_if_new(ledger),
            on_plan=lambda plan: show_plan(plan, quiet=args.quiet),
        )
        elsewhere = "" if config.recipe is None or args.dp_sgd_beside else _measured_elsewhere(config, run)
        code = print_outcome(run, elsewhere)
        if args.dp_sgd_beside and run.result.stopped == "finished":  # the result of the recipe is told before
            plain = train(
                plain_dp_sgd(config, int(run.trainer.mechanism.expected_batch_size)),
                run.folder / "dp-sgd",
                overwrite=args.overwrite,
                progress=not args.quiet,
                ledger=ledger,
                dataset=args.data_id,
            )
            print("\nplain DP-SGD on the same records")
            code = print_outcome(plain)
    return code


def _measured_elsewhere(config: TrainConfig, run: TrainingRun) -> str:
    """Return what plain DP-SGD reached on a benchmark like this one, and how to train it on these records."""
    from gnomon.recipes.evidence import nearest

    budget = run.trainer.mechanism
    known = nearest(config.data, int(budget.expected_batch_size), budget.target_epsilon or 1.0, "dp-sgd")
    hint = "--dp-sgd-beside trains it on these records and is charged for it"
    if known is None:
        return f"not trained; {hint}"
    where = f"{known.records} records, epsilon {known.epsilon:g}, {counted(known.seeds, 'seed')}"
    return f"{known.text()} in the study {known.experiment} ({where}); {hint}"


def print_outcome(run: TrainingRun, dp_sgd: str = "") -> int:
    """Print the scores, the privacy claim and the files of a run; return the exit code.

    Args:
        run: the run.
        dp_sgd: what is known of plain DP-SGD beside a recipe.
    """
    out = run.folder
    last = run.result.history[-1] if run.result.history else {}
    if run.result.stopped != "finished":
        reasons = {"interrupted": "stopped by Ctrl-C", "budget": "stopped because the budget is spent,"}
        planned = counted(run.trainer.mechanism.steps, "step")
        print(f"{reasons[run.result.stopped]} after {run.result.steps} of {planned}")
    if "validation/accuracy" in last:
        area = f", AUC {last['validation/auc']:.3f}" if "validation/auc" in last else ""
        print(f"test accuracy  {100 * last['validation/accuracy']:.1f} %{area}")
    if text := public_score(run.folder):
        print(f"public alone   {text}")
    if dp_sgd:
        print(f"plain DP-SGD   {dp_sgd}")
    statement = run.trainer.statement()
    claim = "privacy      " if statement.guarantee else "NO GUARANTEE "
    print(f"{claim}  {run.result.epsilon!r}")
    if (total := run.trainer.ledger_session.total(statement.delta)) is not None:
        condition = (
            ", if all settings were fixed before the first result was seen" if total.counted < total.epsilon else ""
        )
        print(f"on these data  {total.counted!r}, {together(total.runs)}{condition}")
    if share := _left_out(run.result.history):
        print(f"unprotected    {100 * share:.2g} % of the sampled records were not finite and were left out")
    for caveat in statement.caveats:
        print(f"caveat         {caveat}")
    print(f"statement      {out / 'statement.txt'}")
    if run.result.history:
        print(f"figure         {out / 'curve.png'}")
    print(f"model          {out / 'model.safetensors'}")
    if run.result.stopped == "interrupted" and run.trainer.ledger_session.ledger is not None:
        print(f"resume with    gnomon resume {out}")
    return INTERRUPTED if run.result.stopped == "interrupted" else 0


def _left_out(history: Sequence[Mapping[str, Any]]) -> float:
    """Return the mean share of sampled records that were left out because they were not finite. Unprotected."""
    shares = [share for record in history if (share := record.get("unprotected/left_out")) is not None]
    return sum(shares) / len(shares) if shares else 0.0
