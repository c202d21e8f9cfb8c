"""Server side of the WebSocket protocol (RFC 6455) on a socket, within limits on time and memory."""

import base64
import hashlib
import hmac
import socket
import struct
import time
from typing import Dict, List, NamedTuple, Optional, Tuple

MAX_HEAD = 16384
PART = 65536
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
NORMAL, PROTOCOL, TOO_BIG, INTERNAL = 1000, 1002, 1009, 1011
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Ended(Exception):
    """The connection has ended; `code` is sent in the close frame unless the peer closed it."""

    def __init__(self, reason: str, code: Optional[int] = None) -> None:
        super().__init__(reason)
        self.code = code


class Limits(NamedTuple):
    """`message` in bytes; `seconds` for the handshake, for a message that has begun, and for a send."""

    message: int
    seconds: float


class Connection:
    """A connection after its handshake."""

    def __init__(self, peer: socket.socket, limits: Limits, key: Optional[str]) -> None:
        self._socket, self._limits, self._key = peer, limits, key
        self._rest = b""

    # Handshake

    def accept(self) -> bool:
        """Answers the handshake. Returns false if the request was another one, which is then answered."""
        end = time.monotonic() + self._limits.seconds
        head = b""
        while b"\r\n\r\n" not in head and len(head) <= MAX_HEAD:
            head += self._receive(end)
        head, _, self._rest = head.partition(b"\r\n\r\n")
        if len(head) > MAX_HEAD:
            return self._refuse("431 Request Header Fields Too Large")
        lines = head.decode("latin-1").split("\r\n")
        headers: Dict[str, str] = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        method, _, rest = lines[0].partition(" ")
        path = rest.partition(" ")[0]
        if method != "GET":
            return self._refuse("405 Method Not Allowed")
        if path == "/healthz":
            return self._refuse("200 OK", "OK\n")
        nonce = headers.get("sec-websocket-key", "")
        if headers.get("upgrade", "").lower() != "websocket" or not nonce:
            return self._refuse("426 Upgrade Required", "this port speaks OpenPI's protocol over WebSocket\n")
        if headers.get("sec-websocket-version") != "13":
            return self._refuse("400 Bad Request", "version 13 of WebSocket is required\n")
        if "origin" in headers:
            return self._refuse("403 Forbidden", "web pages may not use this port\n")
        if self._key is not None and not self._is_allowed(headers.get("authorization", "")):
            return self._refuse("401 Unauthorized", "the header Authorization needs `Api-Key KEY`\n")
        token = base64.b64encode(hashlib.sha1(nonce.encode("latin-1") + _GUID).digest()).decode()
        self._send_all(("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                        f"Sec-WebSocket-Accept: {token}\r\n\r\n").encode())
        return True

    def _is_allowed(self, authorization: str) -> bool:
        kind, _, key = authorization.partition(" ")
        same = hmac.compare_digest(key.strip().encode("latin-1"), (self._key or "").encode())
        return kind.lower() in ("api-key", "bearer") and same

    def _refuse(self, status: str, text: str = "") -> bool:
        self._send_all((f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n"
                        f"Connection: close\r\n\r\n{text}").encode())
        return False

    # Messages

    def receive(self) -> Tuple[int, bytes]:
        """Returns the next message and its kind, `TEXT` or `BINARY`. The wait for its beginning has no limit."""
        kind, parts, size = 0, [], 0  # type: int, List[bytes], int
        end: Optional[float] = None
        while True:
            final, code, data, end = self._frame(end, size)
            if code >= CLOSE:
                self._control(code, data)
                end = end if kind else None
                continue
            if (code == 0) != bool(kind) or code > BINARY:
                raise Ended(f"frame {code} is not expected here", PROTOCOL)
            kind = kind or code
            parts.append(data)
            size += len(data)
            if final:
                return kind, parts[0] if len(parts) == 1 else b"".join(parts)

    def _frame(self, end: Optional[float], before: int) -> Tuple[bool, int, bytes, float]:
        first, end = self._exactly(1, end)
        second, end = self._exactly(1, end)
        size = second[0] & 127
        if first[0] & 0x70:
            raise Ended("an extension was not agreed", PROTOCOL)
        code = first[0] & 15
        if not second[0] & 128:
            raise Ended("a frame of a client must be masked", PROTOCOL)
        if code >= CLOSE and (size > 125 or not first[0] & 128):
            raise Ended("a control frame is too long", PROTOCOL)
        if size > 125:
            form = ">H" if size == 126 else ">Q"
            length, end = self._exactly(struct.calcsize(form), end)
            size, = struct.unpack(form, length)
        if size + before > self._limits.message:
            raise Ended(f"a message is larger than {self._limits.message} bytes", TOO_BIG)
        mask, end = self._exactly(4, end)
        data, end = self._exactly(size, end)
        return bool(first[0] & 128), code, _unmask(data, mask), end

    def _control(self, code: int, data: bytes) -> None:
        if code == PING:
            self.send(data, PONG)
        elif code == CLOSE:
            self.send(data[:2], CLOSE)
            raise Ended("closed by the client")
        elif code != PONG:
            raise Ended(f"frame {code} is unknown", PROTOCOL)

    def send(self, data: bytes, kind: int = BINARY) -> None:
        """Sends a message, or a control frame."""
        size = len(data)
        if size < 126:
            head = struct.pack(">BB", 0x80 | kind, size)
        elif size < 65536:
            head = struct.pack(">BBH", 0x80 | kind, 126, size)
        else:
            head = struct.pack(">BBQ", 0x80 | kind, 127, size)
        self._send_all(head + data)

    def close(self, code: int, reason: str) -> None:
        """Sends a close frame, waits shortly for the peer's, and closes the socket."""
        try:
            self.send(struct.pack(">H", code) + reason.encode()[:120], CLOSE)
            self._socket.shutdown(socket.SHUT_WR)
            end = time.monotonic() + 1.0
            while self._receive(end):
                pass
        except (Ended, OSError):
            pass
        self._socket.close()

    # Bytes

    def _exactly(self, size: int, end: Optional[float]) -> Tuple[bytes, float]:
        parts = [self._rest]
        have = len(self._rest)
        while have < size:
            part = self._receive(end)
            end = time.monotonic() + self._limits.seconds if end is None else end
            parts.append(part)
            have += len(part)
        data = b"".join(parts) if len(parts) > 1 else parts[0]
        self._rest = data[size:]
        return data[:size], time.monotonic() + self._limits.seconds if end is None else end

    def _receive(self, end: Optional[float]) -> bytes:
        left = None if end is None else end - time.monotonic()
        if left is not None and left <= 0:
            raise Ended("a message did not arrive in time", PROTOCOL)
        try:
            self._socket.settimeout(left)
            data = self._socket.recv(1 << 20)
        except socket.timeout:
            raise Ended("a message did not arrive in time", PROTOCOL) from None
        except OSError as error:
            raise Ended(error.strerror or str(error)) from error
        if not data:
            raise Ended("the client closed the connection")
        return data

    def _send_all(self, data: bytes) -> None:
        try:
            self._socket.settimeout(self._limits.seconds)
            self._socket.sendall(data)
        except OSError as error:
            raise Ended(error.strerror or "the client does not read") from error


def _unmask(data: bytes, mask: bytes) -> bytes:
    # Integers of any length make this a loop in C; parts limit the memory of the integers.
    key = int.from_bytes(mask * (PART // 4), "little")
    parts = []
    for at in range(0, len(data), PART):
        part = data[at:at + PART]
        own = key if len(part) == PART else key & ((1 << 8 * len(part)) - 1)
        parts.append((int.from_bytes(part, "little") ^ own).to_bytes(len(part), "little"))
    return b"".join(parts)
