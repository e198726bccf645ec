"""The command `gnomon audit`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gnomon.cli.settings import add_flag_groups, add_run_flags, add_settings, settings_of
from gnomon.errors import SettingError
from gnomon.runs.config import default_settings

VIOLATED = 1
"""Exit code of an audit that refutes the claim."""


def add_command(commands: Any) -> None:
    """Add the command to the parser of all commands."""
    parser = commands.add_parser(
        "audit",
        usage="gnomon audit [flags]",
        help="attack the private step and compare the leakage with the claim",
        description="Attack the training step that the settings of a run describe, and give a lower bound on its "
        "epsilon beside the claimed epsilon. The exit code is 1 if the claim is VIOLATED.",
        epilog="examples:\n"
        "  gnomon audit --target-epsilon 1\n"
        "  gnomon audit --method pcdp --rank 16 --subspace-scope per-tensor --clip automatic\n"
        "  gnomon audit --model logistic --data digits --canaries 16\n"
        "  gnomon audit --config runs/demo/config.yaml --whole-run 1000 --out runs/demo-audit\n\n"
        "Without --model a probe of 64 parameters is attacked, whose gradients the auditor chooses: a tight bound.\n"
        "The folder holds audit.txt, audit.json and audit.png.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_audit)
    attack = parser.add_argument_group("attack")
    attack.add_argument(
        "--canaries", type=int, default=32, metavar="N", help="number of canaries in one release (default: 32)"
    )
    attack.add_argument("--releases", type=int, default=200, metavar="N",
                        help="number of releases for each of four data sets (default: 200)")  # fmt: skip
    attack.add_argument("--confidence", type=float, default=0.999, metavar="X",
                        help="confidence of the lower bound (default: 0.999)")  # fmt: skip
    attack.add_argument("--draws", type=int, default=2**25, metavar="N",
                        help="normal variates drawn to test the noise (default: 2^25, which tests 5 standard "
                        "deviations)")  # fmt: skip
    attack.add_argument("--whole-run", type=int, default=0, metavar="N",
                        help="also attack a whole run with N canaries; takes as long as such a run")  # fmt: skip
    attack.add_argument("--out", type=Path, metavar="FOLDER", help="folder for table, JSON and figure")
    attack.add_argument("--json", action="store_true", help="print JSON instead of the table")
    groups = add_flag_groups(parser)
    add_settings(parser, groups)
    add_run_flags(groups["run"], overwrite="replace the audit in the folder")


def _audit(args: argparse.Namespace) -> int:
    from gnomon.audit import audit
    from gnomon.figures.audit import audit_scores
    from gnomon.runs.audit import trainer_to_audit

    if args.out is not None:
        if (args.out / "audit.json").exists() and not args.overwrite:
            raise SettingError("out", str(args.out), "another folder, or --overwrite to replace the audit in it")
        args.out.mkdir(parents=True, exist_ok=True)
    trainer, data = trainer_to_audit(settings_of(args, default_settings))
    report = audit(
        trainer,
        data,
        canaries=args.canaries,
        releases=args.releases,
        confidence=args.confidence,
        draws=args.draws,
        whole_run=args.whole_run,
        progress=not args.quiet,
    )
    print(report.json() if args.json else report.table())
    if args.out is not None:
        (args.out / "audit.txt").write_text(report.table() + "\n")
        audit_scores(report, args.out / "audit.png")
        (args.out / "audit.json").write_text(report.json())
    return 0 if report.ok else VIOLATED
