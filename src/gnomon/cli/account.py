"""The command `gnomon account`."""

from __future__ import annotations

import argparse
import json
from typing import Any, get_args


def add_command(commands: Any) -> None:
    """Add the command to the parser of all commands."""
    parser = commands.add_parser(
        "account",
        help="compute the epsilon of a run, or the noise multiplier for a target epsilon",
        description="Compute the epsilon of a run (give --noise-multiplier), or the noise multiplier for a target "
        "epsilon (give --target-epsilon). Sampling is Poisson unless --sample-rate is 1.",
        epilog="examples:\n"
        "  gnomon account --noise-multiplier 10 --sample-rate 0.025 --steps 3200 --delta 1e-5\n"
        "  gnomon account --target-epsilon 1 --sample-rate 0.025 --epochs 80\n"
        "  gnomon account --noise-multiplier 10 --sample-rate 0.025 --steps 3200 --accountant all",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_account)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--noise-multiplier", type=float, metavar="X", help="noise standard deviation divided by the clip bound"
    )
    which.add_argument("--target-epsilon", type=float, metavar="X", help="epsilon to which noise is calibrated")
    parser.add_argument(
        "--sample-rate", type=float, required=True, metavar="Q", help="probability that a record takes part in a step"
    )
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--steps", type=int, metavar="N", help="number of private steps")
    length.add_argument("--epochs", type=float, metavar="X",
                        help="passes over the data, converted as gnomon train does: an epoch is 1 / sample rate "
                        "steps, rounded, and the number of all steps is rounded again")  # fmt: skip
    parser.add_argument("--delta", type=float, default=1e-5, metavar="X", help="delta (default: 1e-5)")
    parser.add_argument(
        "--accountant",
        default="pld",
        choices=("pld", "rdp", "rdp-classic", "gdp", "all"),
        help="accounting method: pld is tight; rdp-classic is what most papers report; gdp is an approximation without "
        "guarantee (default: pld)",
    )
    parser.add_argument(
        "--adjacency",
        choices=("add-remove", "zero-out", "replace-one"),
        default="add-remove",
        help="definition of neighbouring data sets (default: add-remove)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _account(args: argparse.Namespace) -> int:
    from gnomon.accounting import Accountant, Poisson, digits, epsilon, noise_multiplier, steps_of
    from gnomon.errors import SettingError
    from gnomon.validate import sample_rate

    rate = sample_rate("sample-rate", args.sample_rate)
    steps = args.steps if args.steps is not None else steps_of(args.epochs, Poisson(rate))
    if args.epochs is not None and not args.json:
        print(f"steps = {steps}")
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
            # digits rounds up: less noise would cost more than the target
            print(f"noise multiplier = {digits(sigma, 4)}")
    all_names = get_args(Accountant)
    names: tuple[Accountant, ...] = all_names if args.accountant == "all" else (args.accountant,)
    for name in names:
        try:
            result = epsilon(noise_multiplier=sigma, accountant=name, **settings)
        except SettingError:
            if len(names) == 1:
                raise
            continue  # with "all", accountants that do not support these settings are left out
        if args.json:
            finite = float(result) if result < float("inf") else None
            print(json.dumps(vars(result) | {"epsilon": finite}))
        else:
            print(result.describe())
    return 0
