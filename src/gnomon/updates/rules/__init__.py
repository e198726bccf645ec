"""The rules that compute per-sample updates, one for each layer type; importing this package registers them."""

from gnomon.updates.rules import attention, convolution, embedding, linear, normalisation, recurrent, transformers
from gnomon.updates.rules.registry import Drift, Rule, Shift, Tap, find_rule, forward_rule, rule

__all__ = [
    "Drift",
    "Rule",
    "Shift",
    "Tap",
    "attention",
    "convolution",
    "embedding",
    "find_rule",
    "forward_rule",
    "linear",
    "normalisation",
    "recurrent",
    "rule",
    "transformers",
]
