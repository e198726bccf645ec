"""The commands about the ledger. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnomon.errors import SettingError
from gnomon.text import counted

if TYPE_CHECKING:
    from gnomon.ledger import Ledger
    from gnomon.runs.train import TrainingRun


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of a run that say where its steps are counted."""
    group = add_ledger_flag(parser)
    group.add_argument(
        "--checkpoint-every",
        type=int,
        metavar="N",
        help="steps between two checkpoints (default: an epoch, 16 or more)",
    )
    add_data_id_flag(group)


def add_data_id_flag(group: argparse._ArgumentGroup) -> None:
    """The flag that declares which data set this is."""
    group.add_argument(
        "--data-id",
        metavar="NAME",
        help="count for the data set of this name, or of this id in the ledger, instead of recognising it by its "
        "records; the statement has the total of all runs under a name",
    )


def add_ledger_flag(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """The flag that names the ledger, in a group of its own."""
    group = parser.add_argument_group("ledger")
    group.add_argument(
        "--ledger",
        metavar="FILE",
        help="where all runs on the same data are added up (default: GNOMON_LEDGER, or a file of the user, see "
        "gnomon ledger show); 'none' counts this run alone",
    )
    return group


def add_resume(commands: Any, finish: Callable[[TrainingRun], int]) -> None:
    """`gnomon resume`; `finish` tells the user how the run went."""
    parser = commands.add_parser(
        "resume",
        help="go on with a run that was stopped or killed",
        description="Go on from the last checkpoint of a run, with fresh noise. Steps that were reserved in the ledger "
        "count as taken, up to 15 more than were. A changed config, other data and an edited ledger are refused.",
        epilog="example:\n  gnomon resume runs/demo",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="the run folder")
    parser.add_argument("--ledger", metavar="FILE", help="the run's ledger, if it was moved")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=lambda args: finish(_resume(args)))


def _resume(args: argparse.Namespace) -> TrainingRun:
    from gnomon.runs.resume import resume

    return resume(args.folder, ledger=existing(args) if args.ledger else None, progress=not args.quiet)


def chosen(path: str | None) -> Ledger | None:
    """The ledger that `--ledger` stands for, or GNOMON_LEDGER without it; None for "none".

    >>> chosen("none") is None
    True
    """
    from gnomon.ledger import Ledger, default_path
    from gnomon.ledger.ledger import NO_LEDGER

    found = None if path == NO_LEDGER else path or default_path()
    return None if found is None else _told(Ledger(found))


def _told(ledger: Ledger) -> Ledger:
    """The ledger, after saying that it is new if nothing is in it: its path may be mistyped, or the file lost."""
    from gnomon.ledger.ledger import unknown_before

    if not ledger.head().number:
        print(f"gnomon: {unknown_before(str(ledger.path))}", file=sys.stderr)
    return ledger


def add_ledger(commands: Any) -> None:
    """`gnomon ledger`."""
    parser = commands.add_parser(
        "ledger",
        help="what all runs on a data set have cost together",
        description="Every private run is entered before its first step, and every step before its noise is drawn.",
        epilog="examples:\n"
        "  gnomon ledger show\n"
        "  gnomon ledger budget digits --epsilon 3 --delta 1e-5    # after a run on them\n"
        "  gnomon ledger budget patients --epsilon 3 --by-name     # before it, for runs with --data-id patients\n"
        "  gnomon ledger verify --head 17:ab12...    # the head that a statement printed\n"
        "  gnomon ledger verify --run runs/demo      # does the run folder fit the ledger?\n"
        "  gnomon ledger export > ledger.jsonl\n"
        "  gnomon ledger pay RUN --steps 10          # the ledger is from a backup, and these were released since",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", metavar="verb", required=True)
    show = _verb(verbs, "show", _show, "data sets, what was spent on each, and its runs")
    show.add_argument("dataset", nargs="?", help="one data set only, by name or id")
    show.add_argument("--delta", type=float, default=1e-5, metavar="X", help="delta (default: 1e-5)")
    show.add_argument("--json", action="store_true", help="print JSON")
    verify = _verb(verbs, "verify", _verify, "check that no entry was changed or lost")
    verify.add_argument("--head", metavar="N:HASH", help="a head kept elsewhere that must be among the entries")
    verify.add_argument(
        "--run",
        dest="checked",  # `run` is the command itself
        type=Path,
        metavar="FOLDER",
        help="also check what a run left there: model, config, epsilon and entry; exit code 1 if one is wrong",
    )
    _verb(verbs, "export", _export, "print every entry as a line of JSON")
    budget = _verb(verbs, "budget", _budget, "set what all runs on a data set may cost together")
    budget.add_argument("dataset", help="a data set of the ledger, by name or id")
    budget.add_argument("--epsilon", type=float, required=True, metavar="X", help="the total that is allowed")
    budget.add_argument("--delta", type=float, default=1e-5, metavar="X", help="delta (default: 1e-5)")
    budget.add_argument(
        "--declared",
        action="store_true",
        help="the settings of all runs were fixed before the first result was seen: tight accounting may be used",
    )
    budget.add_argument(
        "--by-name",
        action="store_true",
        help="enter the name as a data set of its own, for runs with --data-id of this name and for no others",
    )
    close = _verb(verbs, "close", _close, "a run that was killed will not go on: free the steps it never reserved")
    close.add_argument("closed", metavar="RUN", help="the id of the run")  # `run` is the command itself
    pay = _verb(
        verbs, "pay", _pay, "steps of a run were released and are not in the ledger, as after a restored backup"
    )
    pay.add_argument("payer", metavar="RUN", help="the id of the run")
    pay.add_argument(
        "--steps", type=int, required=True, metavar="N", help="how many steps to pay for; never given back"
    )


def _verb(verbs: Any, name: str, run: Any, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text)
    parser.add_argument("--ledger", metavar="FILE", help="the ledger (default: GNOMON_LEDGER, or a file of the user)")
    parser.set_defaults(run=run)
    return parser


def existing(args: argparse.Namespace) -> Ledger:
    from gnomon.ledger import Ledger, needed_path

    path = needed_path(args.ledger)
    if not path.exists():
        raise SettingError(
            "ledger", str(path), "a ledger that exists; the first private run makes it, or budget --by-name"
        )
    return Ledger(path)


def _show(args: argparse.Namespace) -> int:
    from gnomon.ledger.state import RECORD

    ledger = existing(args)
    state = ledger.state()
    if not args.json:
        print(f"ledger  {ledger.path}, head {state.head}")
    for group in state.groups([ledger.find(args.dataset)] if args.dataset else state.datasets):
        for unit in sorted({run.unit for run in state.runs.values() if run.dataset in group} | {RECORD}):
            (_print_json if args.json else _print_text)(ledger, group, unit, args.delta)
    return 0


def _print_json(ledger: Ledger, group: list[str], unit: str, delta: float) -> None:
    dataset = group[0]
    total, state = ledger.total(dataset, delta, unit), ledger.state()
    spent, tight = (float(one) if one < float("inf") else None for one in (total.epsilon, total.declared))
    found = {
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
    print(json.dumps(found))


def _print_text(ledger: Ledger, group: list[str], unit: str, delta: float) -> None:
    dataset = group[0]
    total, state = ledger.total(dataset, delta, unit), ledger.state()
    print(f"\n{', '.join(state.labels(dataset))}  ({', '.join(group)}; unit: {unit})")
    print(f"  spent   {total.epsilon!r}, {counted(total.runs, 'run')}, {counted(total.steps, 'step')}")
    if total.endless:
        print(f"          infinite because of run {', '.join(total.endless)}: no noise, or next to none")
    if total.declared < total.epsilon:
        print(f"          {total.declared!r} if all settings were fixed before the first result was seen")
    if total.budget is not None:
        kind = "settings declared beforehand" if total.budget.declared else "settings may adapt"
        print(f"  budget  epsilon = {total.budget.epsilon:.15g} at delta = {total.budget.delta:g}, {kind}")
    for run in state.runs_on(dataset, unit):
        account = run.account()
        more = f", {run.committed - run.reserved} more declared" if run.committed > run.reserved else ""
        settings = f"{account.sampler.name}, noise {account.noise_multiplier:.4g}, {account.adjacency}"
        print(f"  run {run.id}  {run.time}  {settings}, {counted(run.reserved, 'step')}{more}; {run.label}")


def _verify(args: argparse.Namespace) -> int:
    from gnomon.ledger import Head

    ledger = existing(args)
    count = ledger.verify(None if args.head is None else Head.read(args.head))
    print(f"{counted(count, 'entry', 'entries')}, every one in its place; head {ledger.head()}")
    if count and ledger.state().key is None:
        print("the key of the records' marks is not bound to the entries yet: the next entry does it")
    return 0 if args.checked is None else _verify_run(args.checked, ledger)


def _verify_run(folder: Path, ledger: Ledger) -> int:
    from gnomon.statement.verify import check_run

    checks = check_run(folder, ledger)
    for one in checks:
        print(one)
    wrong = [one.name for one in checks if one.passed is False]
    print(f"{folder}: " + (f"WRONG: {', '.join(wrong)}" if wrong else "nothing is wrong"))
    return 1 if wrong else 0


def _export(args: argparse.Namespace) -> int:
    for line in existing(args).export():
        print(line)
    return 0


def _budget(args: argparse.Namespace) -> int:
    from gnomon.ledger import Budget, Ledger, needed_path

    budget = Budget(args.epsilon, args.delta, args.declared)
    ledger = _told(Ledger(needed_path(args.ledger))) if args.by_name else existing(args)
    dataset = (_by_name if args.by_name else _known)(ledger, args.dataset)
    ledger.set_budget(dataset, budget)
    together = f"all runs on {args.dataset} ({dataset}) together"
    print(f"budget  epsilon = {args.epsilon:.15g} at delta = {args.delta:g} for {together}")
    total = ledger.total(dataset, args.delta)
    print(f"spent   {total.epsilon!r}")
    if (total.declared if args.declared else total.epsilon) > args.epsilon:
        why = f", because of run {', '.join(total.endless)} for good" if total.endless else ""
        print(f"        more than the budget{why}: nothing will fit, every further run on these data is refused")
    return 0


def _known(ledger: Ledger, text: str) -> str:
    """A data set that runs count for already: a budget for an unknown name would protect nothing."""
    try:
        return ledger.find(text)
    except SettingError as error:
        if ledger.named(text):  # several
            raise
        how = "data are known after the first run on them; before it, --by-name enters a name for runs with --data-id"
        raise SettingError("dataset", text, f"{error.expected}; {how}") from None


def _by_name(ledger: Ledger, text: str) -> str:
    """A data set that its holder names, entered on first use."""
    if others := [one for one in ledger.named(text) if not one.startswith("name:")]:
        allowed = f"another name to enter, or no --by-name: {text} is known by its records as {others[0]}"
        raise SettingError("dataset", text, allowed)
    print(f"runs count for {text} with --data-id {text}; without it they do NOT, whatever data they read.")
    print("From now on this ledger refuses runs without --data-id on records that it has never seen")
    return ledger.dataset(text)


def _pay(args: argparse.Namespace) -> int:
    ledger = existing(args)
    ledger.pay(args.payer, args.steps)
    run = ledger.run(args.payer)
    print(f"run {run.id} has paid for {counted(args.steps, 'step')} more: {run.reserved} of {run.declared}")
    return 0


def _close(args: argparse.Namespace) -> int:
    ledger = existing(args)
    ledger.close(args.closed)
    run = ledger.run(args.closed)
    print(f"run {run.id} is closed: {counted(run.reserved, 'step')} spent, {run.declared - run.reserved} free again")
    return 0
