"""Recipes: the best known settings for a budget, as formulas of public facts, without tuning."""

from gnomon.recipes.choice import RECIPES, Choice, Reason, choose
from gnomon.recipes.federated import FederatedPlan, resolve_federated
from gnomon.recipes.formulas import Budget, Schedule, schedule
from gnomon.recipes.plan import Plan, best, check_public, resolve

__all__ = [
    "RECIPES",
    "Budget",
    "Choice",
    "FederatedPlan",
    "Plan",
    "Reason",
    "Schedule",
    "best",
    "check_public",
    "choose",
    "resolve",
    "resolve_federated",
    "schedule",
]
