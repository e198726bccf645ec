"""A site's SuperNode runs the installed Gnomon alone, and is not started with invalid settings."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gnomon.cli.main import main
from gnomon.errors import SettingError
from gnomon.federated.deployment import client_process, supernode
from gnomon.federated.deployment.site import read_federation

AGREED = "method: fedavg\nnoise-multiplier: 2\nclasses: 2\nsites: {north: 480, south: 520}\n"


@pytest.fixture
def site(tmp_path):
    """Return the folder of a site's files, and its flags."""
    (tmp_path / "federation.yaml").write_text(AGREED)
    for name in ("ca.crt", "north.node"):
        (tmp_path / name).write_text("")
    x, y = np.zeros((20, 3), dtype=np.float32), np.arange(20) % 2
    np.savez(tmp_path / "north.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    flags = {
        "superlink": "localhost:1", "root-certificates": tmp_path / "ca.crt", "key": tmp_path / "north.node",
        "name": "north", "data": f"npz:{tmp_path / 'north.npz'}", "federation": tmp_path / "federation.yaml",
        "state": tmp_path / "state", "ledger": tmp_path / "ledger.sqlite", "data-id": "patients",
    }  # fmt: skip
    return tmp_path, flags


def words(flags) -> list[str]:
    return ["site", *(part for name, value in flags.items() for part in (f"--{name}", str(value)))]


def test_a_site_starts_flower_with_programs_of_its_own(site, monkeypatch):
    place, flags = site
    started = []
    monkeypatch.setattr("os.execve", lambda *given: started.append(given))
    main(words(flags))
    ((program, command, environment),) = started
    assert program.endswith("flower-supernode")
    assert 'name="north"' in command[command.index("--node-config") + 1]
    assert 'data-id="patients"' in command[command.index("--node-config") + 1]
    assert environment["PATH"].split(":")[0] == str(place / "state" / "programs")
    assert {name: environment[name] for name in supernode.QUIET} == supernode.QUIET


def test_without_the_site_s_programs_none_of_flower_s_is_found(site, monkeypatch):
    place, flags = site
    started = []
    monkeypatch.setattr("os.execve", lambda *given: started.append(given))
    main(words(flags))
    path = started[0][2]["PATH"]
    every = (supernode.CLIENT, supernode.SPAWNER, *supernode.OTHERS)
    assert {shutil.which(name, path=path) for name in every} == {str(place / "state/programs" / name) for name in every}
    shutil.rmtree(place / "state/programs")
    assert [shutil.which(name, path=path) for name in every] == [None] * len(every)


def test_a_folder_whose_programs_cannot_run_is_refused(site, monkeypatch, capsys):
    _, flags = site
    written = supernode.write_programs

    def unable(*given):
        folder = written(*given)
        for file in folder.iterdir():
            file.chmod(0o600)
        return folder

    monkeypatch.setattr(supernode, "write_programs", unable)
    monkeypatch.setattr("os.execve", lambda *given: pytest.fail("it was started"))
    assert main(words(flags)) == 2
    assert "noexec" in capsys.readouterr().err


def test_flower_s_spawner_is_passed_on_to(tmp_path):
    real = shutil.which(supernode.SPAWNER, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    done = subprocess.run(
        [supernode.write_programs(tmp_path, real) / supernode.SPAWNER, "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "usage: flower-superexec" in done.stdout


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"key": "nowhere"}, "key = 'nowhere'"),
        ({"federation": "nowhere"}, "federation = 'nowhere'"),
        ({"name": "west"}, "name = 'west'"),
        ({"data": "npz:nowhere.npz"}, "nowhere.npz"),
        ({"ledger": "none"}, "ledger = 'none'"),
        ({"state": 'a"b'}, "without quotes"),
        (
            {"data-id": " "},
            "data-id = ' ' is invalid; expected a name for the site's records, as in --data-id patients",
        ),
    ],
)
def test_what_cannot_work_is_named_before_the_node_starts(site, change, named, monkeypatch, capsys):
    place, flags = site
    monkeypatch.chdir(place)
    monkeypatch.setattr("os.execve", lambda *given: pytest.fail("it was started"))
    assert main(words(flags | change)) == 2
    assert named in capsys.readouterr().err


def test_a_site_without_a_name_for_its_records_is_not_started(site, monkeypatch, capsys):
    place, flags = site
    del flags["data-id"]
    monkeypatch.setattr("os.execve", lambda *given: pytest.fail("it was started"))
    assert main(words(flags)) == 2
    assert "data-id = None is invalid; expected a name for the site's records" in capsys.readouterr().err
    assert not (place / "ledger.sqlite").exists()
    assert not (place / "state").exists()


@pytest.mark.parametrize("name", supernode.OTHERS)
def test_other_kinds_of_tasks_end_at_once(name, tmp_path):
    command = [supernode.write_programs(tmp_path) / name, "--token", "x"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"{name} is not run at a site\n")


def test_a_process_of_a_site_takes_flower_s_flags(tmp_path):
    """The program is the installed Flower's own client process, up to where it would load an app."""
    command = [supernode.write_programs(tmp_path) / supernode.CLIENT, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--runtime-api-address" in done.stdout


def test_every_program_that_flower_starts_for_a_task_is_known():
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND

    assert set(TASK_TYPE_TO_COMMAND.values()) == {supernode.CLIENT, *supernode.OTHERS}


def test_a_flower_that_works_in_another_way_is_not_run(monkeypatch):
    process = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    monkeypatch.setattr(process, "run_clientapp", lambda **_: pytest.fail("it was run"))
    monkeypatch.delattr(process, "get_load_client_app_fn")
    for name in ("install_from_fab", "install_app_dependencies", "get_project_dir"):
        monkeypatch.setattr(process, name, getattr(process, name))  # monkeypatch restores it after the test
    with pytest.raises(SystemExit, match="has no get_load_client_app_fn"):
        client_process.run_installed()


def test_another_version_of_flower_is_refused(monkeypatch):
    monkeypatch.setattr(supernode, "version", lambda name: "1.42.0")
    with pytest.raises(SettingError, match=r"flwr = '1.42.0'"):
        supernode.supernode_command(superlink="", root_certificates=Path(), key=Path(), node_config={})


@pytest.mark.parametrize(
    ("sites", "named"),
    [
        ("{north: {records: 9, node: abc}}", "sites.north.node = 'abc'"),
        ("{north: {records: 9, node: 5}, south: {records: 9, node: 5}}", "node = 5"),
    ],
)
def test_nodes_that_are_none_or_have_two_sites_are_named(sites, named, tmp_path):
    file = tmp_path / "federation.yaml"
    file.write_text(f"method: fedavg\nnoise-multiplier: 2\nsites: {sites}\n")
    with pytest.raises(SettingError, match=named):
        read_federation(file)
