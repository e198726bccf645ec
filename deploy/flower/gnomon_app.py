"""The components of the Flower app, which Flower looks up in a module of the app itself."""

from gnomon.federated.deployment.flower import client_app as client
from gnomon.federated.deployment.flower import server_app as server

__all__ = ["client", "server"]
