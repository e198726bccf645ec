"""Former names of settings: kept results are still read, and found by their keys."""

from __future__ import annotations

import json
from pathlib import Path

from gnomon.runs.config import TrainConfig
from gnomon.runs.federate_config import FederateConfig
from gnomon.runs.setting_names import stored_settings
from gnomon.studies.cells import settings_key

KEPT = Path(__file__).parents[2] / "experiments" / "results"


def test_settings_of_every_kept_result_are_read_and_stored_under_the_same_names():
    files = {TrainConfig: KEPT / "cells", FederateConfig: KEPT / "federated" / "cells"}
    for config, folder in files.items():
        for file in folder.glob("*.json"):
            settings = json.loads(file.read_text())["settings"]
            # A federated run has no use for some settings of training, which are read at their defaults only.
            stored = stored_settings(TrainConfig()) | stored_settings(config.from_dict(settings))
            assert {name: stored[name] for name in settings} == settings, file.name


def test_kept_results_of_plain_runs_have_the_keys_of_their_settings():
    """Keys of the other results also cover a study, a label or diagnostics."""
    files = list((KEPT / "cells").glob("*.json"))
    keys = {settings_key(TrainConfig.from_dict(json.loads(file.read_text())["settings"])) for file in files}
    assert len(keys & {file.stem for file in files}) >= 541
