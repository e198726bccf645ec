"""The overhead of a simulated federated round beyond the clients' private steps: ten clients, CNN of the papers.

    python benchmarks/federated.py [--rounds 3] [--steps 5]

Time in `Trainer.step` is work; everything else (transfer of weights, the subspace of the round, fingerprints, checks,
aggregation) is overhead. Records are random numbers, because the time does not depend on them.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

from gnomon import Trainer
from gnomon.accounting import Account, Poisson
from gnomon.federated import Client, ClientProfile, Server, UpdateBounds, fedavg, fedpcdp
from gnomon.federated.rounds import InProcess, run_round
from gnomon.models import paper_cnn

LOSS = nn.CrossEntropyLoss(reduction="none")


def measure(name: str, rounds: int, steps: int, records: int = 5000, clients: int = 10) -> str:
    """Return time, overhead and traffic of one strategy as a row of a Markdown table."""
    torch.manual_seed(0)
    public = (torch.randn(100, 1, 28, 28), torch.arange(100) % 10)
    strategy = fedavg() if name == "fedavg" else fedpcdp(public)
    profiles, made, spent = {}, {}, [0.0]
    for number in range(clients):
        model = paper_cnn((1, 28, 28), 10)
        trainer = Trainer(
            model, LOSS, torch.optim.SGD(model.parameters(), lr=1.0), method=strategy.method, max_grad_norm=0.01,
            sample_rate=250 / records, expected_batch_size=250, noise_multiplier=4.0, target_delta=1e-5,
            steps=(rounds + 1) * steps, progress=False,
        )  # fmt: skip
        plain = trainer.step

        def timed(inputs: torch.Tensor, targets: torch.Tensor, plain=plain) -> dict[str, float]:
            started = time.perf_counter()
            metrics = plain(inputs, targets)
            spent[0] += time.perf_counter() - started
            return metrics

        trainer.step = timed  # type: ignore[method-assign]
        data = (torch.randn(records, 1, 28, 28), torch.randint(0, 10, (records,)))
        made[f"c{number}"] = Client(f"c{number}", trainer, data, strategy, steps=steps)
        bounds = UpdateBounds(0.01, 4.0, 250, steps, 1.0)
        profiles[f"c{number}"] = ClientProfile(1.0, Account(Poisson(250 / records), 4.0), bounds)
    server = Server(paper_cnn((1, 28, 28), 10), LOSS, strategy, profiles, rounds=rounds + 1)
    exchange = InProcess(made)
    run_round(
        server, exchange, lambda number, names: None
    )  # the first round includes the checks of every client's data
    spent[0], started = 0.0, time.perf_counter()
    for _ in range(rounds):
        ended = run_round(server, exchange, lambda number, names: None)
    total = (time.perf_counter() - started) / rounds
    work = spent[0] / rounds
    return (
        f"| {name} | {total:.2f} | {work:.2f} | {100 * (total - work) / work:.0f} % "
        f"| {ended.bytes_down // clients:,} | {ended.bytes_up // clients:,} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds (default: 3)")
    parser.add_argument("--steps", type=int, default=5, help="steps of each client in a round (default: 5)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| strategy | s per round | in private steps | overhead | down, bytes | up, bytes |\n|---|---|---|---|---|---|"
    )
    for name in ("fedavg", "fedpcdp"):
        print(measure(name, args.rounds, args.steps), flush=True)


if __name__ == "__main__":
    main()
