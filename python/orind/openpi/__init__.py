"""OpenPI's WebSocket protocol in front of a policy of the daemon: `orind-openpi`, or `Server` with a `Policy`."""

from .policy import LoopPolicy, NetworkPolicy, Policy
from .server import Server

__all__ = ["LoopPolicy", "NetworkPolicy", "Policy", "Server"]
