"""Address of a daemon: the same defaults and variables as `orinctl`."""

import os
from typing import NamedTuple, Optional, Union

from .errors import OrindError

SERVICE_SOCKET = "/run/orind/orind.sock"


class Address(NamedTuple):
    """A unix socket (`path`), or a TCP port (`host`, `port`)."""

    path: Optional[str] = None
    host: str = "localhost"
    port: int = 0
    tls: bool = False

    @property
    def is_local(self) -> bool:
        """Whether the daemon runs on this machine, so that it opens the same files."""
        return self.path is not None

    def __str__(self) -> str:
        if self.path is not None:
            return self.path
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


def _own_socket() -> str:
    if os.geteuid() == 0:
        return SERVICE_SOCKET
    folder = os.environ.get("XDG_RUNTIME_DIR")
    if not folder:
        folder = f"/run/user/{os.geteuid()}"
        if not os.path.isdir(folder):
            folder = f"/tmp/orind-{os.geteuid()}"
            _check_owner(folder)
    return os.path.join(folder, "orind.sock")


def _check_owner(folder: str) -> None:
    """Refuses a folder below /tmp that another user may have created."""
    try:
        info = os.lstat(folder)
    except OSError:
        return
    if info.st_uid not in (0, os.geteuid()) or info.st_mode & 0o170000 != 0o040000 or info.st_mode & 0o022:
        raise OrindError(f"{folder} is not safe: it must be a folder of this user that others cannot write to; "
                         "set XDG_RUNTIME_DIR or ORIND_SOCKET")


def default_socket() -> str:
    """Returns `$ORIND_SOCKET`, the user's own socket, or the service's if only that one exists."""
    named = os.environ.get("ORIND_SOCKET")
    if named:
        return named
    own = _own_socket()
    return SERVICE_SOCKET if not os.path.exists(own) and os.path.exists(SERVICE_SOCKET) else own


def parse(address: Union[None, str, "os.PathLike[str]", Address] = None) -> Address:
    """Parses a path of a unix socket, `HOST:PORT`, or a URL with `http`, `https`, `tcp` or `unix`.

    `None` is the daemon that `orinctl` would use.
    """
    if isinstance(address, Address):
        return address
    if address is None:
        return Address(path=default_socket())
    text = os.fspath(address)
    scheme, separator, rest = text.partition("://")
    if not separator and text.startswith("unix:"):
        return Address(path=text[len("unix:"):])
    if not separator:
        if "/" in text or ":" not in text:
            return Address(path=text)
        scheme, rest = "tcp", text
    if scheme == "unix":
        return Address(path=rest)
    if scheme not in ("http", "https", "tcp"):
        raise ValueError(f"{text}: unknown scheme {scheme}; use a path, HOST:PORT, http:// or https://")
    authority, _, path = rest.partition("/")
    if path:
        raise ValueError(f"{text}: a path after the port is not supported")
    host, colon, port = authority.rpartition(":")
    if not colon or authority.endswith("]"):
        host, port = authority, {"https": "443", "http": "80"}.get(scheme, "")
    if not port.isdigit() or not 0 < int(port) < 65536 or not host:
        raise ValueError(f"{text}: needs a host and a port from 1 to 65535, as in orin:8080")
    return Address(host=host.strip("[]"), port=int(port), tls=scheme == "https")


def default_token() -> Optional[str]:
    """Returns `$ORIND_TOKEN`, which a port with a token requires."""
    return (os.environ.get("ORIND_TOKEN") or "").strip() or None
