"""The client of the HTTP API: the verbs of the embedded application, from anywhere."""

from perdure.client.client import Client
from perdure.client.run import RemoteRun

__all__ = ["Client", "RemoteRun"]
