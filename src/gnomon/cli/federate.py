"""`gnomon federate`."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from gnomon.cli import ledger
from gnomon.cli.settings import INTERRUPTED, add_settings, settings_of
from gnomon.errors import SettingError
from gnomon.runs.federate_config import FederateConfig, federated_recipe
from gnomon.runs.folder import claimed
from gnomon.text import together


def add_federate(commands: Any) -> None:
    parser = commands.add_parser(
        "federate",
        help="train where the data cannot come to one machine",
        description="Federated training. With --simulate all clients run in this process, on parts of one data set. "
        "A real deployment runs the same code on Flower: see docs/federated.md.",
        epilog="examples:\n"
        "  gnomon federate --simulate --data digits --clients 5 --method fedpcdp --rounds 10\n"
        "  gnomon federate --simulate --data mnist --clients 10 --partition dirichlet:0.1 --holdout 0.25 "
        "--method fedfdp\n"
        "  gnomon federate --resume runs/federated-digits-...\n\n"
        "The run folder holds config.yaml, metrics.jsonl, model.safetensors, statement.txt, statement.json,\n"
        "curve.png, bytes.md (traffic), report.html and what --resume needs.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_federate)
    parser.add_argument("--simulate", action="store_true", help="run server and clients in this process")
    parser.add_argument("--resume", type=Path, metavar="FOLDER", help="go on with the run in this folder")
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file of settings; flags win over it")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="run folder (default: runs/federated-<data>-<time>)")
    parser.add_argument("--overwrite", action="store_true", help="replace the run that is in the folder")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    ledger.add_data_id_flag(ledger.add_ledger_flag(parser))
    add_settings(parser, config=FederateConfig)


def _federate(args: argparse.Namespace) -> int:
    from gnomon.accounting import digits
    from gnomon.federated.rounds import RoundFailed
    from gnomon.federated.simulation.run import federate, resume
    from gnomon.report import report

    if args.resume is None and not args.simulate:
        raise SettingError("simulate", False, "--simulate, --resume FOLDER, or see docs/federated.md for a deployment")
    try:
        if args.resume is not None:
            if args.data_id is not None:
                raise SettingError("data-id", args.data_id, "nothing with --resume: a run keeps the one it began with")
            moved = None if args.ledger is None else ledger.existing(args)
            run = resume(args.resume, progress=not args.quiet, ledger=moved)
        else:
            config = settings_of(args, federated_recipe)
            stem = Path(config.data.removeprefix("npz:")).stem
            book = None if config.insecure_noise_seed is not None else ledger.chosen(args.ledger)
            with claimed(f"federated-{stem}") if args.out is None else nullcontext(args.out) as out:
                run = federate(
                    config, out, overwrite=args.overwrite, progress=not args.quiet, ledger=book, dataset=args.data_id
                )
    except RoundFailed as error:
        raise ValueError(str(error)) from error
    last = run.history[-1] if run.history else {}  # metrics.jsonl may have been lost
    if run.stopped == "interrupted":
        print(f"stopped by Ctrl-C after round {last['round']}; go on with: gnomon federate --resume {run.folder}")
    elif run.stopped == "budget":
        print(f"stopped after round {last['round']}: the budgets are spent, no further round can be paid for")
    if last:
        print(f"test accuracy  {100 * last['validation/accuracy']:.1f} %")
    claim = "privacy      " if run.statement.guarantee else "NO GUARANTEE "
    print(
        f"{claim}  epsilon = {digits(run.statement.epsilon)} at delta = {run.statement.delta:g}, {run.statement.unit}"
    )
    if (total := run.total) is not None:
        named = "epsilon" in (run.statement.ledger or {})
        who = "for all clients" if named else "for the client that paid the most"
        print(f"on these data  epsilon = {digits(total.counted)}, {together(total.runs)}, {who}")
    for caveat in run.statement.caveats:
        print(f"caveat         {caveat}")
    for what, file in (("statement", "statement.txt"), ("picture", "curve.png"), ("traffic", "bytes.md")):
        print(f"{what:<13}  {run.folder / file}")
    print(f"model          {run.folder / 'model.safetensors'}")
    print(f"report         {report([run.folder])}")
    return INTERRUPTED if run.stopped == "interrupted" else 0
