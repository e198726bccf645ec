"""A small experiment that takes seconds to reproduce."""

from __future__ import annotations

import yaml

from gnomon.studies.reproduce import read_experiment
from gnomon.studies.reproduce.experiment_files import restrict_to_values

TOY = {
    "title": "A toy", "paper": "nobody", "axis": "noise-multiplier", "values": [5, 20], "seeds": 2,
    "paper-epsilon": {5: 1.5, 20: 0.4}, "as-coded": "fixed-blocks",
    "settings": {
        "data": "digits", "private-records": 1300, "public-records": 40, "batch-size": 130, "epochs": 1, "lr": 1,
    },
    "lines": {
        "DP-SGD": {"method": "dp-sgd", "published": {5: [80, 1.5], 20: 50}},
        "PCDP": {"method": "pcdp", "settings": {"rank": 10}, "at": {20: {"lr": 0.5}}},
        "public": {"method": "public-only"},
    },
    "fast": {"values": [5], "seeds": 1, "settings": {"epochs": 0.5}},
    "notes": ["a note"],
}  # fmt: skip


def toy(tmp_path, **changes):
    """Write the experiment, with changes, to a file and read it."""
    path, given = tmp_path / "toy.yaml", restrict_to_values(TOY | changes) if "values" in changes else TOY | changes
    path.write_text(yaml.safe_dump(given))
    return read_experiment(str(path))
