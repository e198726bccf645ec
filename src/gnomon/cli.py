"""The command line: a thin front on the same objects."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

from gnomon import __version__, cli_ledger, cli_report
from gnomon.config import RECIPES, TrainConfig, read_yaml, recipe
from gnomon.federated_config import NOT_FEDERATED, FederateConfig, federated_recipe
from gnomon.memory import keep_memory
from gnomon.validate import SettingError

if TYPE_CHECKING:
    from gnomon.runs import Run

INTERRUPTED = 130
VIOLATED = 1
Settings = TypeVar("Settings", bound=TrainConfig)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0, 1 if an audit refutes a claim, 2 for a wrong setting, or 130 after Ctrl-C.

    >>> main(["account", "--noise-multiplier", "10", "--sample-rate", "0.025", "--steps", "3200"])
    epsilon = 0.500 at delta = 1e-05 (add-remove, Poisson q = 0.025, PLD)
    0
    """
    parser = _parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return 0
    warnings.showwarning = _short_warning
    keep_memory()
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        print("\ngnomon: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has gone
        sys.stderr.close()
        return 0
    except (ValueError, TypeError, OSError) as error:
        if args.debug:
            raise
        print(f"gnomon: error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gnomon",
        description="Train models on data about people, under differential privacy.",
        epilog="Start with: gnomon train --data digits --target-epsilon 1",
    )
    parser.add_argument("--version", action="version", version=f"gnomon {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the whole traceback of an error")
    commands = parser.add_subparsers(dest="command", metavar="command")
    _add_train(commands)
    _add_compare(commands)
    _add_federate(commands)
    cli_report.add_report(commands)
    cli_report.add_diagnose(commands)
    cli_report.add_reproduce(commands)
    _add_account(commands)
    cli_ledger.add_resume(commands, _tell)
    cli_ledger.add_ledger(commands)
    _add_audit(commands)
    _add_methods(commands)
    return parser


# -- train -----------------------------------------------------------------------------------------


def _add_train(commands: Any) -> None:
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
    cli_ledger.add_flags(parser)
    parser.add_argument("--tensorboard", action="store_true", help="event files in the folder tensorboard of the run")
    cli_report.add_diagnose_flag(parser)
    _add_settings(parser)


def _add_settings(
    parser: argparse.ArgumentParser, leave_out: frozenset[str] = frozenset(), config: type[TrainConfig] = TrainConfig
) -> None:
    """A flag for each setting of a run."""
    shown_fields = [field for field in dataclasses.fields(config) if field.name not in leave_out]
    names = dict.fromkeys(field.metadata["group"] for field in shown_fields)
    groups = {name: parser.add_argument_group(name) for name in names}
    hints = get_type_hints(config)
    for field in shown_fields:
        kinds = get_args(hints[field.name]) or (hints[field.name],)
        kind = float if float in kinds else int if int in kinds else str
        text = field.metadata["help"].replace("%", "%%")
        differs = any(field.name in one for one in RECIPES.values())
        shown = f" (default: {field.default}{', other for some data sets' if differs else ''})"
        shown = "" if field.default is None or "default" in text else shown
        groups[field.metadata["group"]].add_argument(
            f"--{field.name.replace('_', '-')}",
            type=kind,
            choices=field.metadata["choices"] or None,
            metavar=None if field.metadata["choices"] else {float: "X", int: "N", str: "NAME"}[kind],
            default=argparse.SUPPRESS,
            help=text + shown,
        )


def _train(args: argparse.Namespace) -> int:
    from gnomon.runs import train

    config = _config(args, recipe)
    out = args.out or Path("runs") / f"{Path(config.data.removeprefix('npz:')).stem}-{datetime.now():%Y%m%d-%H%M%S}"
    ledger = None if config.insecure_noise_seed is not None else cli_ledger.chosen(args.ledger)
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
    )
    return _tell(run)


def _tell(run: Run) -> int:
    """How a run went, for people; the exit code."""
    out = run.folder
    last = run.result.history[-1] if run.result.history else {}
    if run.result.stopped != "finished":
        reasons = {"interrupted": "stopped by Ctrl-C", "budget": "stopped at the budget"}
        print(f"{reasons[run.result.stopped]} after {run.result.steps} of {run.trainer.plan.steps} steps")
    if "validation/accuracy" in last:
        print(f"test accuracy  {100 * last['validation/accuracy']:.1f} %")
    alone = run.folder / "public-only.json"
    if alone.exists() and "accuracy" in (scores := json.loads(alone.read_text())):
        share = f"{100 * scores['accuracy']:.1f} % without any private record, epsilon 0"
        print(f"public alone   {share} ({scores['public records']} public records)")
    statement = run.trainer.statement()
    claim = "privacy      " if statement.guarantee else "NO GUARANTEE "
    print(f"{claim}  {run.result.epsilon!r}")
    if (total := run.trainer.spending.total(statement.delta)) is not None:
        print(f"on these data  {total.epsilon!r}, {total.runs} runs together")
    for caveat in statement.caveats:
        print(f"caveat         {caveat}")
    print(f"statement      {out / 'statement.txt'}")
    if run.result.history:
        print(f"picture        {out / 'curve.png'}")
    print(f"model          {out / 'model.safetensors'}")
    if run.result.stopped == "interrupted" and run.trainer.spending.ledger is not None:
        print(f"to go on       gnomon resume {out}")
    return INTERRUPTED if run.result.stopped == "interrupted" else 0


def _config(args: argparse.Namespace, defaults: Callable[[str, str], Settings]) -> Settings:
    """Defaults of the data set, then the file, then flags."""
    names = {field.name for field in dataclasses.fields(defaults("digits", ""))}
    flags = {name: value for name, value in vars(args).items() if name in names}
    file = read_yaml(args.config) if args.config is not None else {}
    data = flags.get("data", file.get("data", TrainConfig().data))
    method = flags.get("method", file.get("method", TrainConfig().method))
    return defaults(str(data), str(method)).with_settings(file).with_settings(flags)


# -- federate --------------------------------------------------------------------------------------


def _add_federate(commands: Any) -> None:
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
    cli_ledger.add_ledger_flag(parser)
    _add_settings(parser, NOT_FEDERATED, FederateConfig)


def _federate(args: argparse.Namespace) -> int:
    from gnomon.federated.run import federate, resume
    from gnomon.federated.simulate import RoundFailed
    from gnomon.report import report

    if args.resume is None and not args.simulate:
        raise SettingError("simulate", False, "--simulate, --resume FOLDER, or see docs/federated.md for a deployment")
    try:
        if args.resume is not None:
            moved = None if args.ledger is None else cli_ledger.existing(args)
            run = resume(args.resume, progress=not args.quiet, ledger=moved)
        else:
            config = _config(args, federated_recipe)
            stem = Path(config.data.removeprefix("npz:")).stem
            out = args.out or Path("runs") / f"federated-{stem}-{datetime.now():%Y%m%d-%H%M%S}"
            ledger = None if config.insecure_noise_seed is not None else cli_ledger.chosen(args.ledger)
            run = federate(config, out, overwrite=args.overwrite, progress=not args.quiet, ledger=ledger)
    except RoundFailed as error:
        raise ValueError(str(error)) from error
    last = run.history[-1]
    if run.stopped == "interrupted":
        print(f"stopped by Ctrl-C after round {last['round']}; go on with: gnomon federate --resume {run.folder}")
    elif run.stopped == "budget":
        print(f"stopped after round {last['round']}: the budgets of all clients are spent")
    print(f"test accuracy  {100 * last['validation/accuracy']:.1f} %")
    claim = "privacy      " if run.statement.guarantee else "NO GUARANTEE "
    print(f"{claim}  epsilon = {run.statement.epsilon:.3f} at delta = {run.statement.delta:g}, {run.statement.unit}")
    if (total := run.statement.ledger) is not None:
        spent = "infinite" if total["epsilon"] is None else f"{total['epsilon']:.3f}"
        print(f"on these data  epsilon = {spent}, {total['runs']} runs together, for the client that paid the most")
    for caveat in run.statement.caveats:
        print(f"caveat         {caveat}")
    for what, file in (("statement", "statement.txt"), ("picture", "curve.png"), ("traffic", "bytes.md")):
        print(f"{what:<13}  {run.folder / file}")
    print(f"model          {run.folder / 'model.safetensors'}")
    print(f"report         {report([run.folder])}")
    return INTERRUPTED if run.stopped == "interrupted" else 0


# -- compare ---------------------------------------------------------------------------------------


def _add_compare(commands: Any) -> None:
    parser = commands.add_parser(
        "compare",
        help="several methods, noise levels and seeds, side by side",
        description="Run methods x noise levels x seeds on one split of the data. Finished runs are kept in the "
        "folder: start it again to go on. The public-only line is what the public records give alone, at epsilon 0.",
        epilog="examples:\n"
        "  gnomon compare --data digits --methods dp-sgd,pdp,pcdp,rpdp,rsdp,public-only\n"
        "  gnomon compare --data mnist --private 10000 --public 100 --noise-multipliers 6,10,22 --epochs 80 \\\n"
        "      --batch-size 250 --max-grad-norm 0.01 --lr 5 --methods dp-sgd,pcdp,pcdp:scope=per-tensor,public-only\n\n"
        "Studies seed their noise, so a comparison makes no privacy claim; its epsilons are those of the settings.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_compare)
    parser.add_argument("--methods", default="dp-sgd,pdp,pcdp,rpdp,rsdp,public-only", metavar="A,B,...",
                        help="methods, with their own settings if need be: pcdp:rank=50,scope=per-tensor")  # fmt: skip
    parser.add_argument("--noise-multipliers", default="5,10,20,40", metavar="X,Y,...", help="noise levels")
    parser.add_argument("--seeds", type=int, default=2, metavar="N", help="runs of each cell (default: 2)")
    parser.add_argument("--workers", type=int, metavar="N", help="runs at a time (default: one a core)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file of settings; flags win over it")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to keep runs (default: runs/compare-<data>)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    _add_settings(parser, frozenset({"method", "noise_multiplier", "target_epsilon", "seed", "insecure_noise_seed"}))


def _compare(args: argparse.Namespace) -> int:
    import os

    from gnomon import compare

    config = _config(args, recipe)
    methods = compare.split_methods(args.methods)
    try:
        levels = [float(level) for level in args.noise_multipliers.split(",")]
    except ValueError:
        raise SettingError("noise-multipliers", args.noise_multipliers, "numbers separated by commas") from None
    if compare.PUBLIC_ONLY not in methods:
        methods.append(compare.PUBLIC_ONLY)  # no comparison without the honest baseline
    cells = compare.grid(config, methods, levels, args.seeds)
    out = args.out or Path("runs") / f"compare-{Path(config.data.removeprefix('npz:')).stem}"
    results = compare.run(
        cells, out, workers=args.workers if args.workers is not None else os.cpu_count() or 1, progress=not args.quiet
    )
    compare.write(compare.summary(results), out, f"{config.data}, {config.epochs:g} epochs, batch {config.batch_size}")
    compare.remember(out, config, methods, levels, args.seeds, cells)
    return 0


# -- account ---------------------------------------------------------------------------------------


def _add_account(commands: Any) -> None:
    parser = commands.add_parser(
        "account",
        help="epsilon of a run, or the noise that a budget needs",
        description="What a run costs (give --noise-multiplier) or how much noise a budget needs "
        "(give --target-epsilon). Poisson sampling unless --sample-rate is 1.",
        epilog="examples:\n"
        "  gnomon account --noise-multiplier 10 --sample-rate 0.025 --steps 3200 --delta 1e-5\n"
        "  gnomon account --target-epsilon 1 --sample-rate 0.025 --epochs 80\n"
        "  gnomon account --noise-multiplier 10 --sample-rate 0.025 --steps 3200 --accountant all",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_account)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--noise-multiplier", type=float, metavar="X", help="noise in units of the clip bound")
    which.add_argument("--target-epsilon", type=float, metavar="X", help="the budget to find noise for")
    parser.add_argument("--sample-rate", type=float, required=True, metavar="Q", help="probability to join a step")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--steps", type=int, metavar="N", help="number of noisy steps")
    length.add_argument("--epochs", type=float, metavar="X", help="steps times sample rate")
    parser.add_argument("--delta", type=float, default=1e-5, metavar="X", help="delta (default: 1e-5)")
    parser.add_argument(
        "--accountant",
        default="pld",
        choices=("pld", "rdp", "rdp-classic", "gdp", "all"),
        help="pld is tight; rdp-classic is what papers printed; gdp is an approximation, no guarantee",
    )
    parser.add_argument("--adjacency", choices=("add-remove", "zero-out", "replace-one"), default="add-remove")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _account(args: argparse.Namespace) -> int:
    from gnomon.accounting import Accountant, epsilon, noise_multiplier
    from gnomon.validate import positive, sample_rate

    rate = sample_rate("sample-rate", args.sample_rate)
    steps = args.steps if args.steps is not None else max(1, round(positive("epochs", args.epochs) / rate))
    settings: dict[str, Any] = {
        "sample_rate": rate,
        "steps": steps,
        "delta": args.delta,
        "adjacency": args.adjacency,
    }
    sigma = args.noise_multiplier
    if sigma is None:
        accountant: Accountant = "pld" if args.accountant == "all" else args.accountant
        sigma = noise_multiplier(target_epsilon=args.target_epsilon, accountant=accountant, **settings)
        if not args.json:
            print(f"noise multiplier = {sigma:.4f}")
    every = get_args(Accountant)
    names: tuple[Accountant, ...] = every if args.accountant == "all" else (args.accountant,)
    for name in names:
        found = epsilon(noise_multiplier=sigma, accountant=name, **settings)
        if args.json:
            finite = float(found) if found < float("inf") else None
            print(json.dumps(vars(found) | {"epsilon": finite}))
        else:
            print(found.describe())
    return 0


# -- audit -----------------------------------------------------------------------------------------


def _add_audit(commands: Any) -> None:
    parser = commands.add_parser(
        "audit",
        help="attack the private step and compare what it leaks with the claim",
        description="Attack the training step that the settings of a run stand for, and give a lower bound on its "
        "epsilon beside the claimed one. The exit code is 1 if the claim is VIOLATED.",
        epilog="examples:\n"
        "  gnomon audit --target-epsilon 1\n"
        "  gnomon audit --method pcdp --rank 16 --scope per-tensor --clip automatic\n"
        "  gnomon audit --model logistic --data digits --canaries 16\n"
        "  gnomon audit --config runs/demo/config.yaml --whole-run 1000 --out runs/demo-audit\n\n"
        "Without --model a probe of 64 parameters is attacked, whose gradients the auditor chooses: a tight bound.\n"
        "The folder holds audit.txt, audit.json and audit.png.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_audit)
    parser.add_argument("--canaries", type=int, default=32, metavar="N", help="canaries in one release (default: 32)")
    parser.add_argument("--releases", type=int, default=200, metavar="N",
                        help="steps that each of four data sets is released for (default: 200)")  # fmt: skip
    parser.add_argument("--confidence", type=float, default=0.999, metavar="X",
                        help="of the lower bound (default: 0.999)")  # fmt: skip
    parser.add_argument("--whole-run", type=int, default=0, metavar="N",
                        help="also attack a whole run with N canaries; takes as long as such a run")  # fmt: skip
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file of settings; flags win over it")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to leave table, JSON and picture")
    parser.add_argument("--overwrite", action="store_true", help="replace the audit that is in the folder")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    _add_settings(parser)


def _audit(args: argparse.Namespace) -> int:
    from gnomon.audit import audit
    from gnomon.audit.settings import trainer_to_audit
    from gnomon.report import audit_scores

    if args.out is not None:
        if (args.out / "audit.json").exists() and not args.overwrite:
            raise SettingError(
                "out", str(args.out), "another folder, or --overwrite to replace the audit that is there"
            )
        args.out.mkdir(parents=True, exist_ok=True)
    trainer, data = trainer_to_audit(_config(args, recipe))
    report = audit(
        trainer,
        data,
        canaries=args.canaries,
        releases=args.releases,
        confidence=args.confidence,
        whole_run=args.whole_run,
        progress=not args.quiet,
    )
    print(report.json() if args.json else report.table())
    if args.out is not None:
        (args.out / "audit.txt").write_text(report.table() + "\n")
        audit_scores(report, args.out / "audit.png")
        (args.out / "audit.json").write_text(report.json())
    return 0 if report.ok else VIOLATED


# -- methods ---------------------------------------------------------------------------------------


def _add_methods(commands: Any) -> None:
    parser = commands.add_parser("methods", help="list the methods and clip rules")
    parser.set_defaults(run=_methods)


def _methods(args: argparse.Namespace) -> int:
    from gnomon import clipping, methods

    for title, table in (("methods", methods.METHODS), ("clip rules", clipping.RULES)):
        print(title)
        for name, maker in table.items():
            first = (maker.__doc__ or "").strip().splitlines()[0]
            print(f"  {name:<17} {first}")
    return 0


def _short_warning(message: Warning | str, *rest: Any, **more: Any) -> None:
    print(f"gnomon: warning: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
