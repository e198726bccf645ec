"""A privacy statement explained to readers who do not know differential privacy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gnomon.accounting import digits

QUESTION = {
    "add-remove": "whether a given {unit} was used at all",
    "zero-out": "whether a given {unit} was used at all",
    "replace-one": "which of two {unit}s was used",
}
"""What an attacker has to guess, by adjacency."""
NEIGHBOURS = {
    "add-remove": "one {unit} is added or removed",
    "zero-out": "one {unit} contributes or contributes nothing",
    "replace-one": "one {unit} is replaced by another",
}
"""How neighbouring data sets differ, by adjacency."""


def unit_noun(unit: object) -> str:
    """Return the noun for the protected unit of a statement: "client" or "record".

    >>> unit_noun("one client with all its records"), unit_noun("one record of one client")
    ('client', 'record')
    """
    return "client" if str(unit).startswith("one client") else "record"


def describe_neighbours(adjacency: str, unit: object) -> str:
    """Return how neighbouring data sets differ, for an adjacency and the protected unit of a statement.

    >>> describe_neighbours("add-remove", "one client with all its records")
    'one client is added or removed'
    """
    return NEIGHBOURS[adjacency].format(unit=unit_noun(unit)) if adjacency in NEIGHBOURS else str(adjacency)


def explain(statement: Mapping[str, Any]) -> list[str]:
    """Return what a statement guarantees to the people in the data, as short paragraphs.

    >>> paragraphs = explain({"epsilon": 1.0, "delta": 1e-5, "adjacency": "add-remove", "guarantee": True})
    >>> paragraphs[1]
    'An attacker who has to guess whether a given record was used at all, and knows everything else, is right at most \
73.2 % of the time after seeing the model. A coin toss gives 50 %.'
    """
    epsilon, delta, adjacency = statement.get("epsilon"), float(statement["delta"]), statement["adjacency"]
    unit = statement.get("unit", "")
    noun = unit_noun(unit)
    question = QUESTION.get(adjacency, "about a {unit}").format(unit=noun)
    if epsilon is None:
        return ["No noise was added: nothing is promised."]
    if not statement["guarantee"]:
        return [
            "This run makes no privacy claim. The reasons are below.",
            f"By its settings alone epsilon would be {digits(epsilon)} at delta = {delta:g}.",
        ]
    return [
        f"The trained model is differentially private: epsilon = {digits(epsilon)} at delta = {delta:g}, "
        f"when {describe_neighbours(adjacency, unit)}.",
        f"An attacker who has to guess {question}, and knows everything else, is right at most "
        f"{digits(100 * guessing_accuracy(epsilon, delta), 1)} % of the time after seeing the model. "
        "A coin toss gives 50 %.",
        "In other words, any conclusion that can be drawn from the model becomes at most "
        f"{digits(math.exp(min(epsilon, 700)), significant=3)} times as likely because a {noun} was in the data, "
        f"up to a probability of {delta:g}.",
    ]


def guessing_accuracy(epsilon: float, delta: float) -> float:
    """Return the largest accuracy of a guess between two equally likely neighbouring data sets.

    (epsilon, delta) bounds true positives plus true negatives by 1 + (e^epsilon - 1 + 2 delta) / (e^epsilon + 1).

    >>> guessing_accuracy(0.0, 0.0)
    0.5
    """
    odds = math.exp(min(epsilon, 700))
    return min(1.0, (odds + delta) / (odds + 1))
