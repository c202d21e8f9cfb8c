"""HTTP over a unix socket or TCP, with one time limit for a whole call and streams of events."""

import http.client
import json
import os
import socket
import ssl
import threading
import time
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional

from .address import Address
from .errors import APIError, Closed, ConnectError, OrindError, ProtocolError, Timeout

CONNECT_S = 10.0
MAX_ANSWER = 1 << 30
MAX_EVENT = 1 << 28
MAX_ERROR = 1 << 20


class Event(NamedTuple):
    """A server-sent event."""

    name: str
    data: str


class _Unix(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Deadline:
    """Time limit of a call; `None` never ends."""

    def __init__(self, seconds: Optional[float]) -> None:
        self.seconds = seconds
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self, most: Optional[float] = None) -> Optional[float]:
        """Returns the seconds that are left, at most `most`; raises `Timeout` if there are none."""
        if self._end is None:
            return most
        left = self._end - time.monotonic()
        if left <= 0:
            raise self.over()
        return left if most is None else min(left, most)

    def over(self) -> Timeout:
        return Timeout(f"no complete answer within {self.seconds} s")


class Exchange:
    """One request and its answer. `close`, also from another thread, cancels the request in the daemon.

    The constructor sends the request and does not wait for the answer, so `close` also interrupts that wait.
    """

    def __init__(self, address: Address, method: str, path: str, body: Any, token: Optional[str],
                 timeout: Optional[float], headers: Optional[Mapping[str, str]] = None) -> None:
        self.address = address
        self.complete = False
        self.response: Optional[http.client.HTTPResponse] = None
        self._deadline = Deadline(timeout)
        self._closed = False
        self._lock = threading.Lock()
        self._socket: Optional[socket.socket] = None
        self._connection = self._connect()
        try:
            self._send(method, path, body, token, headers or {})
        except BaseException:
            self._release()
            raise

    def _connect(self) -> http.client.HTTPConnection:
        limit = self._deadline.left(CONNECT_S) or CONNECT_S
        address = self.address
        connection: http.client.HTTPConnection
        if address.path is not None:
            connection = _Unix(address.path, limit)
        elif address.tls:
            connection = http.client.HTTPSConnection(
                address.host, address.port, timeout=limit, context=ssl.create_default_context())
        else:
            connection = http.client.HTTPConnection(address.host, address.port, timeout=limit)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            reason = error.strerror or str(error) or type(error).__name__
            raise ConnectError(f"{address}: no connection to the daemon: {reason.lower()}") from error
        self._socket = connection.sock
        if address.path is None:
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return connection

    def _send(self, method: str, path: str, body: Any, token: Optional[str], headers: Mapping[str, str]) -> None:
        lines: Dict[str, str] = {"Connection": "close", "Accept": "*/*", **headers}
        data = None
        if body is not None:
            data = _encode(body)
            lines["Content-Type"] = "application/json"
        if token and not self.address.is_local:
            lines["Authorization"] = f"Bearer {token}"
        try:
            self._limit()
            self._connection.request(method, path, data, lines)
        except (BrokenPipeError, ConnectionResetError):
            pass  # an early refusal may be waiting to be read
        except (OSError, http.client.HTTPException) as error:
            raise self._failure(error) from error

    def _wait(self) -> http.client.HTTPResponse:
        """Waits for the head of the answer; raises the error that it reports."""
        if self.response is None:
            try:
                self._limit()
                self.response = self._connection.getresponse()
            except (OSError, AttributeError, http.client.HTTPException) as error:
                raise self._failure(error) from error
            if not 200 <= self.response.status < 300:
                raise self._refusal(self.response)
        return self.response

    def _limit(self) -> None:
        if self._socket is not None:
            self._socket.settimeout(self._deadline.left())

    def _failure(self, error: BaseException) -> OrindError:
        if self._closed:
            return Closed("the request was closed")
        if isinstance(error, (socket.timeout, TimeoutError)):
            return self._deadline.over()
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return ConnectError(f"{self.address}: the daemon closed the connection: {reason}")

    def _refusal(self, response: http.client.HTTPResponse) -> APIError:
        text = self._read(MAX_ERROR, whole=False)
        try:
            body = json.loads(text)
        except ValueError:
            body = text.decode("utf-8", "replace").strip()
        return APIError.parse(body, response.status, dict(response.getheaders()))

    def chunks(self) -> Iterator[bytes]:
        """Yields the body in pieces as they arrive."""
        response = self._wait()
        while not response.isclosed():
            try:
                self._limit()
                piece = response.read1(1 << 16)
            except (OSError, ValueError, AttributeError, http.client.HTTPException) as error:
                raise self._failure(error) from error
            if self._closed:
                raise Closed("the request was closed")
            if piece:
                yield piece
            elif response.length:
                raise ConnectError(f"{self.address}: the daemon closed the connection within its answer")
            else:
                return

    def _read(self, most: int, whole: bool = True) -> bytes:
        pieces: List[bytes] = []
        size = 0
        for piece in self.chunks():
            size += len(piece)
            if size > most:
                if whole:
                    raise ProtocolError(f"{self.address}: the answer is larger than {most} bytes")
                break
            pieces.append(piece)
        return b"".join(pieces)

    def read(self) -> bytes:
        """Returns the whole body, and closes the connection."""
        try:
            return self._read(MAX_ANSWER)
        finally:
            self._release()

    def json(self) -> Any:
        """Returns the body as JSON, and closes the connection."""
        text = self.read()
        try:
            return json.loads(text)
        except ValueError as error:
            raise ProtocolError(f"{self.address}: the answer is not JSON: {error}") from error

    def events(self) -> Iterator[Event]:
        """Yields the server-sent events of the body."""
        rest: List[bytes] = []
        name, data, size = "", [], 0  # type: str, List[str], int
        for piece in self.chunks():
            size += len(piece)
            if size > MAX_EVENT:
                raise ProtocolError(f"{self.address}: an event is larger than {MAX_EVENT} bytes")
            if b"\n" not in piece:
                rest.append(piece)
                continue
            lines = b"".join([*rest, piece]).split(b"\n")
            rest = [lines.pop()]
            for line in lines:
                text = line.rstrip(b"\r").decode("utf-8", "replace")
                if not text:
                    if data:
                        yield Event(name, "\n".join(data))
                    name, data, size = "", [], len(rest[0])
                    continue
                field, _, value = text.partition(":")
                value = value[1:] if value.startswith(" ") else value
                if field == "event":
                    name = value
                elif field == "data":
                    data.append(value)

    def close(self) -> None:
        """Ends the exchange. A thread that reads it gets `Closed`."""
        with self._lock:
            self._closed = True
            if self._socket is not None:
                try:
                    self._socket.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def _release(self) -> None:
        """Closes the connection from the thread that reads it."""
        self.close()
        with self._lock:
            self._socket = None
        if self.response is not None:
            self.response.close()
        self._connection.close()

    def finish(self) -> None:
        """Closes the connection; for the end of an iteration."""
        self._release()


def _encode(body: Any) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can express
        return json.dumps(body, allow_nan=False).encode("ascii")


def absolute(name: str, address: Address) -> str:
    """Returns the absolute path of an existing file if the daemon runs on this machine, else the name."""
    return os.path.abspath(name) if address.is_local and os.path.exists(name) else name
