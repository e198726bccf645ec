"""The command `gnomon federate`."""

from __future__ import annotations

import argparse
import dataclasses
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnomon.cli.ledger_flags import add_ledger_flags, chosen_ledger, existing_ledger, warn_if_new
from gnomon.cli.plan import public_score, show_plan
from gnomon.cli.settings import INTERRUPTED, add_flag_groups, add_run_flags, add_settings, settings_of
from gnomon.errors import SettingError
from gnomon.runs.config import COMPRESSED
from gnomon.runs.federate_config import FederateConfig, federated_defaults
from gnomon.runs.folder import claimed
from gnomon.text import together

if TYPE_CHECKING:
    from gnomon.federated.simulation.run import FederatedRun

COMPRESSED_SETTINGS = frozenset(
    field.name for field in dataclasses.fields(FederateConfig) if field.metadata["group"] == COMPRESSED
)
"""Settings of compressed methods. No federated method uses them, so that they have no flags."""


def add_command(commands: Any) -> None:
    """Add the command to the parser of all commands."""
    parser = commands.add_parser(
        "federate",
        usage="gnomon federate [flags]",
        help="train on data that cannot be brought to one machine",
        description="Train a model on the data of several clients. With --simulate all clients run in this process, on "
        "parts of one data set. A deployment runs the same code on Flower: see docs/federated.md.",
        epilog="examples:\n"
        "  gnomon federate --simulate --data digits --clients 5 --method fedpcdp --rounds 10\n"
        "  gnomon federate --simulate --data mnist --clients 10 --partition dirichlet:0.1 --holdout 0.25 "
        "--method fedfdp\n"
        "  gnomon federate --simulate --data mnist --clients 5 --recipe fed-best --target-epsilon 1\n"
        "  gnomon federate --resume runs/federated-digits-...\n\n"
        "The run folder holds config.yaml, metrics.jsonl, model.safetensors, statement.txt, statement.json,\n"
        "curve.png, bytes.md (network traffic), report.html and the state that --resume needs.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_federate)
    groups = add_flag_groups(parser)
    everyday = groups["everyday"]
    everyday.add_argument("--simulate", action="store_true", help="run server and clients in this process")
    everyday.add_argument("--resume", type=Path, metavar="FOLDER", help="resume the run in this folder")
    add_settings(parser, groups, COMPRESSED_SETTINGS, FederateConfig)
    everyday.add_argument(
        "--out", type=Path, metavar="FOLDER", help="run folder (default: runs/federated-<data>-<time>)"
    )
    add_run_flags(groups["run"], overwrite="replace the run in the folder")
    add_ledger_flags(groups["ledger"])


def _federate(args: argparse.Namespace) -> int:
    from gnomon.federated.builders import CHOSEN_BY_RECIPE
    from gnomon.federated.rounds import RoundFailed
    from gnomon.federated.simulation.run import federate, resume
    from gnomon.runs.builders.preparation import refuse_own_settings

    if args.resume is None and not args.simulate:
        raise SettingError.with_message(
            "choose --simulate or --resume FOLDER; docs/federated.md describes a deployment",
            name="simulate",
            value=False,
        )
    try:
        if args.resume is not None:
            if args.data_id is not None:
                raise SettingError.with_message(
                    "--data-id does not apply to --resume: a run keeps the data set with which it began",
                    name="data-id",
                    value=args.data_id,
                )
            ledger = None if args.ledger is None else existing_ledger(args.ledger)
            run = resume(args.resume, progress=not args.quiet, ledger=ledger)
        else:
            config = settings_of(args, federated_defaults)
            if config.recipe is not None:  # also flags with their default values
                refuse_own_settings(config.recipe, vars(args), CHOSEN_BY_RECIPE)
            ledger = None if config.insecure_noise_seed is not None else chosen_ledger(args.ledger)
            warn_if_new(ledger)
            with claimed(f"federated-{config.data_name}") if args.out is None else nullcontext(args.out) as out:
                run = federate(
                    config,
                    out,
                    overwrite=args.overwrite,
                    progress=not args.quiet,
                    ledger=ledger,
                    dataset=args.data_id,
                    on_plan=lambda plan: show_plan(plan, quiet=args.quiet),
                )
    except RoundFailed as error:
        raise ValueError(str(error)) from error
    return _print_outcome(run)


def _print_outcome(run: FederatedRun) -> int:
    """Print the scores, the privacy claim and the files of a federated run; return the exit code."""
    from gnomon.accounting import digits
    from gnomon.report import report

    last = run.history[-1] if run.history else {}  # empty if metrics.jsonl was lost
    if run.stopped == "interrupted":
        print(f"stopped by Ctrl-C after round {last['round']}; resume with: gnomon federate --resume {run.folder}")
    elif run.stopped == "budget":
        print(f"stopped after round {last['round']}: the budgets do not cover a further round")
    if last:
        print(f"test accuracy  {100 * last['validation/accuracy']:.1f} %")
    if text := public_score(run.folder):
        print(f"public alone   {text}")
    claim = "privacy      " if run.statement.guarantee else "NO GUARANTEE "
    print(
        f"{claim}  epsilon = {digits(run.statement.epsilon)} at delta = {run.statement.delta:g}, {run.statement.unit}"
    )
    if (total := run.total) is not None:
        common = "epsilon" in (run.statement.ledger or {})
        clients = "for all clients" if common else "for the client that was charged the most"
        print(f"on these data  epsilon = {digits(total.counted)}, {together(total.runs)}, {clients}")
    for caveat in run.statement.caveats:
        print(f"caveat         {caveat}")
    for title, file in (("statement", "statement.txt"), ("figure", "curve.png"), ("traffic", "bytes.md")):
        print(f"{title:<13}  {run.folder / file}")
    print(f"model          {run.folder / 'model.safetensors'}")
    print(f"report         {report([run.folder])}")
    return INTERRUPTED if run.stopped == "interrupted" else 0
