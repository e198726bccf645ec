"""A privacy statement in plain words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gnomon.accounting import digits

QUESTION = {
    "add-remove": "whether a given {noun} was used at all",
    "zero-out": "whether a given {noun} was used at all",
    "replace-one": "which of two {noun}s was used",
}
NEIGHBOURS = {
    "add-remove": "one {noun} is added or removed",
    "zero-out": "one {noun} counts or counts as nothing",
    "replace-one": "one {noun} is replaced by another",
}


def noun(statement: Mapping[str, Any]) -> str:
    """What is protected: a record, or a client with all its records.

    >>> noun({"unit": "one client with all its records"}), noun({"unit": "one record of one client"})
    ('client', 'record')
    """
    return "client" if str(statement.get("unit", "")).startswith("one client") else "record"


def neighbours(statement: Mapping[str, Any]) -> str:
    """How neighbouring data differ.

    >>> neighbours({"adjacency": "add-remove", "unit": "one client with all its records"})
    'one client is added or removed'
    """
    adjacency = statement["adjacency"]
    return NEIGHBOURS[adjacency].format(noun=noun(statement)) if adjacency in NEIGHBOURS else str(adjacency)


def promise(statement: Mapping[str, Any]) -> list[str]:
    """What the run promises to those whose data were used, one short paragraph each.

    >>> said = promise({"epsilon": 1.0, "delta": 1e-5, "adjacency": "add-remove", "guarantee": True})
    >>> said[1]
    'Somebody who has to guess whether a given record was used at all, and knows everything else, is right at most \
73.2 % of the time after seeing the model. Tossing a coin gives 50 %.'
    """
    epsilon, delta = statement.get("epsilon"), float(statement["delta"])
    what = noun(statement)
    question = QUESTION.get(statement["adjacency"], "about a {noun}").format(noun=what)
    if epsilon is None:
        return ["No noise was added: nothing is promised to anybody."]
    if not statement["guarantee"]:
        return [
            "This run makes no privacy claim. The reasons are below.",
            f"By its settings alone epsilon would be {digits(epsilon)} at delta = {delta:g}.",
        ]
    return [
        f"The trained model is differentially private: epsilon = {digits(epsilon)} at delta = {delta:g}, "
        f"when {neighbours(statement)}.",
        f"Somebody who has to guess {question}, and knows everything else, is right at most "
        f"{digits(100 * guess(epsilon, delta), 1)} % of the time after seeing the model. Tossing a coin gives 50 %.",
        "Put another way: whatever anybody might conclude from the model becomes at most "
        f"{digits(math.exp(min(epsilon, 700)), significant=3)} times as likely because a {what} was there, "
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
