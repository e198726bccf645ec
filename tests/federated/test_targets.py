"""What a target epsilon does to a run: who is still asked, and when it ends."""

from __future__ import annotations

import json

from gnomon.federated.rounds import InProcess, rounds
from gnomon.federated.simulation.run import federate, resume, traffic
from gnomon.federated.simulation.setup import build
from gnomon.runs.federate_config import FederateConfig
from tests.federated.test_run import QUICK


def test_rounds_whose_clients_have_spent_their_budgets_pass_while_others_can_still_pay(tmp_path):
    settings = QUICK | {"method": "fedavg", "participation": 0.34, "rounds": 60, "target_epsilon": 0.5}
    run = federate(FederateConfig(**settings), tmp_path / "run", progress=False)
    members = run.federation.server.members.values()
    assert run.stopped == "budget"
    assert {member.account.steps for member in members} == {member.affordable for member in members}
    passed = [row["round"] for row in run.history if not row["asked"]]
    assert passed
    asked = [json.loads(line)["round"] for line in (tmp_path / "run" / "asked.jsonl").open()]
    assert sorted(asked + passed) == [row["round"] for row in run.history], "every round is recorded"
    refused = [json.loads(line) for line in (tmp_path / "run" / "refused.jsonl").open()]
    assert {row["round"] for row in refused} == set(passed)
    for before, row in zip(run.history, run.history[1:], strict=False):
        if row["round"] in passed:
            assert row["validation/loss"] == before["validation/loss"], "nothing moves"
    text = (tmp_path / "run" / "config.yaml").read_text()
    (tmp_path / "run" / "config.yaml").write_text(text.replace("target-epsilon: 0.5", "target-epsilon: 0.52"))
    assert resume(tmp_path / "run", progress=False).history[-1]["round"] > run.history[-1]["round"]


def test_clients_that_refuse_for_their_budget_do_not_end_the_run_for_others():
    federation = build(FederateConfig(**QUICK | {"method": "fedavg", "participation": 0.34, "rounds": 6}))
    server, exchange = federation.server, InProcess(federation.clients)
    first = server.chosen(1)[0]
    client = federation.clients[first]
    client.trainer.account.charge(client.trainer.mechanism.last_step)
    rows = list(rounds(server, exchange))
    assert [row["round"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["accepted"] for row in rows] == [int(server.chosen(n) != [first]) for n in range(1, 7)]


def test_a_far_target_beside_the_noise_does_not_end_a_resumed_run_early(tmp_path):
    folder = tmp_path / "run"
    federate(FederateConfig(**QUICK | {"method": "fedavg", "target_epsilon": 0.6}), folder, progress=False)
    (folder / "config.yaml").write_text((folder / "config.yaml").read_text().replace("rounds: 2", "rounds: 4"))
    with (folder / "asked.jsonl").open("a") as file:  # as if it had been killed in a third round
        last = json.loads((folder / "asked.jsonl").read_text().splitlines()[-1])
        file.write(json.dumps(last | {"round": 3}) + "\n")
    run = resume(folder, progress=False)
    assert (run.stopped, run.history[-1]["round"], run.statement.steps) == ("finished", 4, 5)


def test_noise_worked_out_for_a_target_keeps_it_after_a_lost_round(tmp_path):
    folder = tmp_path / "run"
    settings = QUICK | {"method": "fedavg", "noise_multiplier": None, "target_epsilon": 2.0, "rounds": 3}
    run = federate(FederateConfig(**settings), folder, progress=False)
    asked = (folder / "asked.jsonl").read_text().splitlines(keepends=True)
    (folder / "state.safetensors").unlink()  # as if it had been killed in its first round
    (folder / "asked.jsonl").write_text(asked[0])
    again = resume(folder, progress=False)
    assert (again.stopped, again.history[-1]["round"]) == ("budget", 2)
    assert again.statement.epsilon == run.statement.epsilon <= 2.0


def test_traffic_is_that_of_clients_that_were_asked():
    federation = build(FederateConfig(**QUICK | {"method": "fedavg", "rounds": 4}))
    federation.server.members["client-1"].affordable = 1
    rows = list(rounds(federation.server, InProcess(federation.clients)))
    assert [(row["asked"], row["accepted"], row["refused"]) for row in rows] == [(3, 3, 0), *[(2, 2, 1)] * 3]
    assert "| fedavg | 2,640 | 2,616 |" in traffic(federation, rows)
