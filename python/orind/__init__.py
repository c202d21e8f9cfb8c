"""Client of the orind daemon: language models, ONNX networks and control loops.

    import orind

    client = orind.Client()
    print(client.chat("Name three primes.").text)
"""

from .address import Address, default_socket
from .aio import AsyncClient, AsyncStream
from .answers import Answer, Delta, Loaded, Run, Timings, ToolCall, Usage, tool
from .client import Client, Stream
from .control_loop import ControlLoop, Counts
from .errors import (APIError, Busy, Closed, ConnectError, InvalidRequest, NotReady, OrindError, ProtocolError,
                     StepFailed, Timeout)
from .metrics import Metrics, Sample
from .tensor import Tensor
from .transport import Event

__version__ = "0.1.0"

__all__ = [
    "APIError", "Address", "Answer", "AsyncClient", "AsyncStream", "Busy", "Client", "Closed", "ConnectError", "ControlLoop", "Counts", "Delta",
    "Event", "InvalidRequest", "Loaded", "Metrics", "NotReady", "OrindError", "ProtocolError", "Run", "Sample",
    "StepFailed", "Stream", "Tensor", "Timeout", "Timings", "ToolCall", "Usage", "default_socket", "tool",
]
