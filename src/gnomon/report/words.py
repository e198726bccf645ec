"""A privacy statement in plain words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

QUESTION = {
    "add-remove": "whether a given record was used at all",
    "zero-out": "whether a given record was used at all",
    "replace-one": "which of two records was used",
}
NEIGHBOURS = {
    "add-remove": "one record is added or removed",
    "zero-out": "one record counts or counts as nothing",
    "replace-one": "one record is replaced by another",
}


def promise(statement: Mapping[str, Any]) -> list[str]:
    """What the run promises to a person whose record was used, one short paragraph each.

    >>> said = promise({"epsilon": 1.0, "delta": 1e-5, "adjacency": "add-remove", "guarantee": True})
    >>> said[1]
    'Somebody who has to guess whether a given record was used at all, and knows everything else, is right at most \
73.1 % of the time after seeing the model. Tossing a coin gives 50 %.'
    """
    epsilon, delta = statement.get("epsilon"), float(statement["delta"])
    neighbours = NEIGHBOURS.get(statement["adjacency"], statement["adjacency"])
    question = QUESTION.get(statement["adjacency"], "about a record")
    if epsilon is None:
        return ["No noise was added: nothing is promised to anybody."]
    if not statement["guarantee"]:
        return [
            "This run makes no privacy claim. The reasons are below.",
            f"By its settings alone epsilon would be {epsilon:.3g} at delta = {delta:g}.",
        ]
    return [
        f"The trained model is differentially private: epsilon = {epsilon:.3f} at delta = {delta:g}, "
        f"when {neighbours}.",
        f"Somebody who has to guess {question}, and knows everything else, is right at most "
        f"{100 * guess(epsilon, delta):.1f} % of the time after seeing the model. Tossing a coin gives 50 %.",
        "Put another way: whatever anybody might conclude from the model becomes at most "
        f"{math.exp(min(epsilon, 700)):.3g} times as likely because a record was there, "
        f"up to a probability of {delta:g}.",
    ]


def guess(epsilon: float, delta: float) -> float:
    """How often a guess between two neighbouring data sets, both equally likely, is right at most.

    (epsilon, delta) bounds true positives plus true negatives by 1 + (e^epsilon - 1 + 2 delta) / (e^epsilon + 1).

    >>> guess(0.0, 0.0)
    0.5
    """
    odds = math.exp(min(epsilon, 700))
    return min(1.0, (odds + delta) / (odds + 1))
