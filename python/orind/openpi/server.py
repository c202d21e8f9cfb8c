"""Server of OpenPI's WebSocket protocol: a message with metadata, then an action for each observation."""

import logging
import socket
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from ..errors import OrindError
from . import msgpack
from .policy import Policy
from .websocket import BINARY, INTERNAL, TEXT, Connection, Ended, Limits

log = logging.getLogger("orind.openpi")


class Server:
    """Serves a policy at a port.

    `deadline` limits an inference in seconds, `max_message` a message in bytes; up to `max_connections` clients are
    connected at once. With `key`, clients must send it. A failed inference is answered with a text, which clients raise
    as an exception, and its connection is closed, as OpenPI's own server does.
    """

    def __init__(self, policy: Policy, host: str = "127.0.0.1", port: int = 8000, *, key: Optional[str] = None,
                 deadline: float = 10.0, max_message: int = 16 << 20, max_connections: int = 8,
                 message_seconds: float = 30.0, metadata: Optional[Dict[str, Any]] = None) -> None:
        if not deadline > 0:
            raise ValueError(f"deadline {deadline} must be greater than 0")
        if key is None and not _is_loopback(host):
            raise ValueError(f"{host} can be reached from other machines: a key is required there")
        self._policy, self._key, self._deadline = policy, key, deadline
        self._limits = Limits(max_message, message_seconds)
        self._places = threading.BoundedSemaphore(max_connections)
        self._metadata = msgpack.pack({**policy.metadata(), **(metadata or {})})
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._peers: List[socket.socket] = []
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._listener.bind((host, port))
            self._listener.listen(16)
        except OSError as error:
            self._listener.close()
            raise OrindError(f"{host}:{port} cannot be used: {(error.strerror or str(error)).lower()}") from error

    @property
    def address(self) -> Tuple[str, int]:
        """Host and port."""
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def serve_forever(self) -> None:
        """Serves until `close`."""
        while not self._closed.is_set():
            try:
                peer, address = self._listener.accept()
            except OSError as error:
                if self._closed.is_set():
                    return
                log.warning("no connection was accepted: %s", error)
                time.sleep(0.1)  # out of descriptors
                continue
            if not self._places.acquire(blocking=False):
                log.warning("%s: refused, too many connections", address[0])
                peer.close()
                continue
            threading.Thread(target=self._serve, args=(peer, address[0]), daemon=True).start()

    def close(self) -> None:
        """Stops to listen, and closes all connections."""
        self._closed.set()
        with self._lock:
            for peer in [self._listener, *self._peers]:
                try:
                    peer.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        self._listener.close()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self, peer: socket.socket, name: str) -> None:
        with self._lock:
            self._peers.append(peer)
        try:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection = Connection(peer, self._limits, self._key)
            if connection.accept():
                log.info("%s: connected", name)
                self._converse(connection, name)
        except (Ended, OSError) as end:
            log.info("%s: %s", name, end)
        finally:
            with self._lock:
                self._peers.remove(peer)
            peer.close()
            self._places.release()

    def _converse(self, connection: Connection, name: str) -> None:
        connection.send(self._metadata)
        before: Optional[float] = None
        while True:
            try:
                kind, data = connection.receive()
            except Ended as end:
                if end.code is not None:
                    log.warning("%s: %s", name, end)
                    connection.close(end.code, str(end))
                    return
                raise
            began = time.monotonic()
            try:
                answer = self._answer(kind, data, before)
            except (OrindError, ValueError, KeyError) as error:
                log.warning("%s: %s", name, error)
                connection.send(f"{type(error).__name__}: {error}".encode(), TEXT)
                connection.close(INTERNAL, "the previous message has the error")
                return
            connection.send(answer)
            before = time.monotonic() - began

    def _answer(self, kind: int, data: bytes, before: Optional[float]) -> bytes:
        if kind != BINARY:
            raise ValueError("an observation is a binary message of MessagePack")
        observation = msgpack.unpack(data)
        if not isinstance(observation, dict):
            raise ValueError("an observation is a map")
        began = time.monotonic()
        actions = self._policy.infer(observation, self._deadline)
        took = time.monotonic() - began
        if took > self._deadline:
            raise OrindError(f"the inference took {took:.3f} s, longer than {self._deadline} s")
        timing = {"infer_ms": took * 1e3}
        if before is not None:
            timing["prev_total_ms"] = before * 1e3
        return msgpack.pack({**actions, "server_timing": timing})


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.") or host == "::1"
