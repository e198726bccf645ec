"""The command `gnomon ledger`."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnomon.cli.ledger_flags import existing_ledger, warn_if_new
from gnomon.errors import SettingError
from gnomon.text import counted

if TYPE_CHECKING:
    from gnomon.ledger import Ledger


def add_command(commands: Any) -> None:
    """Add the command to the parser of all commands."""
    parser = commands.add_parser(
        "ledger",
        help="show, budget and verify what all runs on a data set have cost together",
        description="The ledger records a private run before its first step, and each step before its noise is drawn.",
        epilog="examples:\n"
        "  gnomon ledger show\n"
        "  gnomon ledger budget digits --epsilon 3 --delta 1e-5    # after the first run on the data set\n"
        "  gnomon ledger budget patients --epsilon 3 --by-name     # before it, for runs with --data-id patients\n"
        "  gnomon ledger verify --head 17:ab12...    # the head that a statement printed\n"
        "  gnomon ledger verify --run runs/demo      # does the run folder agree with the ledger?\n"
        "  gnomon ledger export > ledger.jsonl\n"
        "  gnomon ledger pay RUN --steps 10          # charge steps released after the backup that was restored",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", metavar="verb", required=True)
    show = _verb(verbs, "show", _show, "show the data sets, what was spent on each, and its runs")
    show.add_argument("dataset", nargs="?", help="show only this data set, by name or id")
    show.add_argument("--delta", type=float, default=1e-5, metavar="X", help="delta (default: 1e-5)")
    show.add_argument("--json", action="store_true", help="print JSON")
    verify = _verb(verbs, "verify", _verify, "check that no entry was changed or lost")
    verify.add_argument("--head", metavar="N:HASH", help="a head recorded elsewhere, which must be among the entries")
    verify.add_argument(
        "--run",
        dest="run_folder",  # `args.run` is the function of the command
        type=Path,
        metavar="FOLDER",
        help="also check the files of a run: model, config, epsilon and ledger entry; exit code 1 if one is wrong",
    )
    _verb(verbs, "export", _export, "print every entry as a line of JSON")
    budget = _verb(verbs, "budget", _budget, "set what all runs on a data set may cost together")
    budget.add_argument("dataset", help="a data set of the ledger, by name or id")
    budget.add_argument(
        "--epsilon", type=float, required=True, metavar="X", help="largest epsilon of all runs together"
    )
    budget.add_argument("--delta", type=float, default=1e-5, metavar="X", help="delta (default: 1e-5)")
    budget.add_argument(
        "--declared",
        action="store_true",
        help="declare that the settings of all runs were fixed before the first result was seen, which allows tighter "
        "accounting",
    )
    budget.add_argument(
        "--by-name",
        action="store_true",
        help="enter the name as a data set of its own, to which only runs with --data-id of this name are charged",
    )
    close = _verb(verbs, "close", _close, "close a run that will not be resumed: frees the steps it never reserved")
    close.add_argument("run_id", metavar="RUN", help="the id of the run")
    missing = "charge steps that were released but are not in the ledger, as after restoring a backup"
    pay = _verb(verbs, "pay", _pay, missing)
    pay.add_argument("run_id", metavar="RUN", help="the id of the run")
    pay.add_argument(
        "--steps", type=int, required=True, metavar="N", help="number of steps to charge; this cannot be undone"
    )


def _verb(verbs: Any, name: str, run: Any, text: str) -> argparse.ArgumentParser:
    """Add a verb of `gnomon ledger` with the flag `--ledger`."""
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text)
    parser.add_argument(
        "--ledger", metavar="FILE", help="the ledger (default: GNOMON_LEDGER, or a file in the user's data folder)"
    )
    parser.set_defaults(run=run)
    return parser


def _show(args: argparse.Namespace) -> int:
    from gnomon.ledger.state import RECORD

    ledger = existing_ledger(args.ledger)
    state = ledger.state()
    if not args.json:
        print(f"ledger  {ledger.path}, head {state.head}")
    for group in state.groups([ledger.find_dataset(args.dataset)] if args.dataset else state.datasets):
        for unit in sorted({run.unit for run in state.runs.values() if run.dataset in group} | {RECORD}):
            (_print_json if args.json else _print_text)(ledger, group, unit, args.delta)
    return 0


def _print_json(ledger: Ledger, group: list[str], unit: str, delta: float) -> None:
    dataset = group[0]
    total, state = ledger.total(dataset, delta, unit), ledger.state()
    spent, tight = (float(value) if value < float("inf") else None for value in (total.epsilon, total.declared))
    summary = {
        "dataset": dataset,
        "datasets": group,
        "names": ", ".join(state.labels(dataset)),
        "unit": unit,
        "epsilon": spent,
        "declared": tight,
        "delta": delta,
        "adjacency": total.epsilon.adjacency,
        "runs": total.runs,
        "steps": total.steps,
        "budget": total.budget and dataclasses.asdict(total.budget),
        "head": str(state.head),
    }
    print(json.dumps(summary))


def _print_text(ledger: Ledger, group: list[str], unit: str, delta: float) -> None:
    dataset = group[0]
    total, state = ledger.total(dataset, delta, unit), ledger.state()
    print(f"\n{', '.join(state.labels(dataset))}  ({', '.join(group)}; unit: {unit})")
    print(f"  spent   {total.epsilon!r}, {counted(total.runs, 'run')}, {counted(total.steps, 'step')}")
    if total.infinite_runs:
        print(f"          infinite because of run {', '.join(total.infinite_runs)}, which has no noise or almost none")
    if total.declared < total.epsilon:
        print(f"          {total.declared!r} if all settings were fixed before the first result was seen")
    if total.budget is not None:
        kind = "settings fixed in advance" if total.budget.declared else "settings may adapt to results"
        print(f"  budget  epsilon = {total.budget.epsilon:.15g} at delta = {total.budget.delta:g}, {kind}")
    for run in state.runs_on(dataset, unit):
        account = run.account()
        more = f", {run.committed - run.reserved} more declared" if run.committed > run.reserved else ""
        settings = f"{account.sampler.name}, noise {account.noise_multiplier:.4g}, {account.adjacency}"
        print(f"  run {run.id}  {run.time}  {settings}, {counted(run.reserved, 'step')}{more}; {run.label}")


def _verify(args: argparse.Namespace) -> int:
    from gnomon.ledger import Head

    ledger = existing_ledger(args.ledger)
    count = ledger.verify(None if args.head is None else Head.parse(args.head))
    print(f"{counted(count, 'entry', 'entries')}, the hash chain is intact; head {ledger.head()}")
    if count and ledger.state().key is None:
        print("the key of the records' fingerprints is not bound to the entries yet; the next entry binds it")
    return 0 if args.run_folder is None else _verify_run(args.run_folder, ledger)


def _verify_run(folder: Path, ledger: Ledger) -> int:
    from gnomon.statement.verify import check_run

    checks = check_run(folder, ledger)
    for check in checks:
        print(check)
    wrong = [check.name for check in checks if check.passed is False]
    print(f"{folder}: " + (f"WRONG: {', '.join(wrong)}" if wrong else "nothing is wrong"))
    return 1 if wrong else 0


def _export(args: argparse.Namespace) -> int:
    for line in existing_ledger(args.ledger).export():
        print(line)
    return 0


def _budget(args: argparse.Namespace) -> int:
    from gnomon.ledger import Budget, Ledger, required_path

    budget = Budget(args.epsilon, args.delta, args.declared)
    ledger = Ledger(required_path(args.ledger)) if args.by_name else existing_ledger(args.ledger)
    warn_if_new(ledger if args.by_name else None)
    dataset = (_by_name if args.by_name else _known)(ledger, args.dataset)
    ledger.set_budget(dataset, budget)
    together = f"all runs on {args.dataset} ({dataset}) together"
    print(f"budget  epsilon = {args.epsilon:.15g} at delta = {args.delta:g} for {together}")
    total = ledger.total(dataset, args.delta)
    print(f"spent   {total.epsilon!r}")
    if (total.declared if args.declared else total.epsilon) > args.epsilon:
        reason = f", permanently because of run {', '.join(total.infinite_runs)}" if total.infinite_runs else ""
        print(f"        more than the budget{reason}: every further run on these data will be refused")
    return 0


def _known(ledger: Ledger, text: str) -> str:
    """Return the id of a data set that has runs; a budget for an unknown name would not limit any run."""
    try:
        return ledger.find_dataset(text)
    except SettingError as error:
        if ledger.datasets_named(text):  # the name is ambiguous
            raise
        remedy = "a data set is known after the first run on it; --by-name enters a name for runs with --data-id"
        raise SettingError.with_message(f"{error}; {remedy}", name="dataset", value=text) from None


def _by_name(ledger: Ledger, text: str) -> str:
    """Return the id of a data set that its holder names, entering it on first use."""
    if recognised := [known for known in ledger.datasets_named(text) if not known.startswith("name:")]:
        raise SettingError.with_message(
            f"{text} is already known by its records as {recognised[0]}: choose another name, or leave out --by-name",
            name="dataset",
            value=text,
        )
    print(f"runs are charged to {text} with --data-id {text}; without it they are NOT, whatever data they read.")
    print("From now on this ledger refuses runs without --data-id on records that it has never seen.")
    return ledger.dataset(text)


def _pay(args: argparse.Namespace) -> int:
    ledger = existing_ledger(args.ledger)
    ledger.pay(args.run_id, args.steps)
    run = ledger.run(args.run_id)
    print(f"run {run.id} was charged {counted(args.steps, 'step')} more: {run.reserved} of {run.declared}")
    return 0


def _close(args: argparse.Namespace) -> int:
    ledger = existing_ledger(args.ledger)
    ledger.close_run(args.run_id)
    run = ledger.run(args.run_id)
    print(f"run {run.id} is closed: {counted(run.reserved, 'step')} spent, {run.declared - run.reserved} free again")
    return 0
