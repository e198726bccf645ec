"""Flower looks for the app's components in a module of the app itself: here they are, imported."""

from gnomon.federated.deployment.flower import client_app as client
from gnomon.federated.deployment.flower import server_app as server

__all__ = ["client", "server"]
