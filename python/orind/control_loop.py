"""Client of a control loop: shared memory and two event counters, without a system call for the values."""

import json
import mmap
import os
import select
import socket
import struct
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

from . import address as addresses
from .errors import APIError, Closed, ConnectError, OrindError, ProtocolError, StepFailed, Timeout
from .tensor import Tensor, count

CONNECT_S = 10.0
MAX_LINE = 1 << 20
HEADER = 64
# Words of the header, 8 bytes each.
STARTED, ANSWERED, ANSWERED_AT, FAILED = range(4)
_ONE = struct.pack("=Q", 1)


class Counts(NamedTuple):
    """Steps of this client: all, those later than the deadline, and the last and longest time in seconds."""

    steps: int
    missed: int
    last_s: float
    worst_s: float


class ControlLoop:
    """A control loop of the daemon at `address` (as for `Client`), used by one client at a time.

    `inputs` and `outputs` are tensors in the memory that daemon and client share: write an input, call `step`, and read
    an output. `deadline_s` and `rate_hz` are those of the configuration.
    """

    def __init__(self, name: str, address: Union[None, str, "os.PathLike[str]", addresses.Address] = None) -> None:
        where = addresses.parse(address)
        if where.path is None:
            raise ValueError(f"{where}: a control loop shares memory, so it needs the daemon's unix socket")
        if not name or "\n" in name:
            raise ValueError(f"{name!r} is no name of a control loop")
        self.name = name
        self.address = where
        self._path = f"{where.path}.lanes"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._fds: List[int] = []
        self._memory: Optional[mmap.mmap] = None
        self._view = memoryview(b"")
        self.inputs: Dict[str, Tensor] = {}
        self.outputs: Dict[str, Tensor] = {}
        self._steps = self._missed = 0
        self._last = self._worst = 0.0
        self._began = self._before = 0
        self._pending = False
        try:
            self._map(self._open())
        except BaseException:
            self.close()
            raise

    def _open(self) -> Dict[str, Any]:
        self._socket.settimeout(CONNECT_S)
        try:
            self._socket.connect(self._path)
            self._socket.sendall(self.name.encode() + b"\n")
            line = self._receive()
        except socket.timeout as error:
            raise Timeout(f"{self._path}: no answer within {CONNECT_S} s") from error
        except OSError as error:
            raise ConnectError(f"{self._path}: no connection: {(error.strerror or str(error)).lower()}; "
                               "a daemon without control loops has no such socket") from error
        try:
            about = json.loads(line)
        except ValueError as error:
            raise ProtocolError(f"{self._path}: the answer is no line of JSON") from error
        if not isinstance(about, dict):
            raise ProtocolError(f"{self._path}: the answer is no object")
        if "error" in about:
            raise APIError.parse(about)
        if len(self._fds) != 3:
            raise ProtocolError(f"{self._path}: {len(self._fds)} descriptors arrived, not 3")
        return about

    def _receive(self) -> bytes:
        line = b""
        room = socket.CMSG_SPACE(8 * 4)
        while not line.endswith(b"\n"):
            data, ancillary, _, _ = self._socket.recvmsg(1 << 16, room, socket.MSG_CMSG_CLOEXEC)
            for level, kind, rights in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    whole = rights[:len(rights) // 4 * 4]
                    self._fds.extend(struct.unpack(f"={len(whole) // 4}i", whole))
            line += data
            if not data or len(line) > MAX_LINE or len(self._fds) > 8:
                raise ConnectError(f"{self._path}: the daemon closed the connection")
        return line

    def _map(self, about: Dict[str, Any]) -> None:
        memory, self._start, self._answer = self._fds
        size = int(about["bytes"])
        if size < HEADER or os.fstat(memory).st_size < size:
            raise ProtocolError(f"{self._path}: the memory is smaller than {size} bytes")
        self._memory = mmap.mmap(memory, size)
        self._view = memoryview(self._memory)
        self._header = self._view[:HEADER].cast("Q")
        self.rate_hz = float(about["rate_hz"])
        self.deadline_s = int(about["deadline_us"]) / 1e6
        self._deadline_ns = int(about["deadline_us"]) * 1000
        for place, tensors in ((about["inputs"], self.inputs), (about["outputs"], self.outputs)):
            for tensor in place:
                offset, shape = int(tensor["offset"]), [int(extent) for extent in tensor["shape"]]
                end = offset + 4 * count(shape)
                if not HEADER <= offset <= end <= size:
                    raise ProtocolError(f"{self._path}: {tensor['name']} lies outside of the memory")
                tensors[tensor["name"]] = Tensor(self._view[offset:end], shape)
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._answer, select.POLLIN)
        self._poll.register(self._socket, select.POLLIN)

    def step(self, inputs: Optional[Mapping[str, Any]] = None, *, timeout: Optional[float] = None,
             spin: bool = False) -> Mapping[str, Tensor]:
        """Runs one step, and returns the outputs, which the next step overwrites.

        `inputs` are copied into the memory first. `timeout` in seconds bounds the wait (default: one second and a
        hundred deadlines). With `spin` this thread polls the memory and stays awake.
        """
        for name, values in (inputs or {}).items():
            if name not in self.inputs:
                raise KeyError(f"{name} is no input of {self.name}; it has {', '.join(self.inputs)}")
            self.inputs[name].set(values)
        self.start()
        self.wait(timeout, spin=spin)
        return self.outputs

    def start(self) -> None:
        """Starts a step with the values in the inputs; the time of its deadline begins.

        After a `Timeout` of `wait` this raises `Timeout` until the late answer has arrived.
        """
        if self._memory is None:
            raise Closed(f"the control loop {self.name} is closed")
        if self._pending:
            if not self._ready(0.0):
                raise Timeout(f"the previous step of the control loop {self.name} is not answered yet")
            self._signal()
        self._before = self._header[ANSWERED]
        self._began = time.monotonic_ns()
        self._header[STARTED] = self._began
        os.write(self._start, _ONE)
        self._pending = True

    def wait(self, timeout: Optional[float] = None, *, spin: bool = False) -> None:
        """Waits for the answer of the step that `start` began."""
        if self._memory is None:
            raise Closed(f"the control loop {self.name} is closed")
        if not self._pending:
            raise OrindError(f"no step of the control loop {self.name} was started")
        limit = 1.0 + 100 * self.deadline_s if timeout is None else timeout
        if spin:
            self._spin(limit)
        if not self._ready(limit):
            raise Timeout(f"no answer of the control loop {self.name} within {limit} s")
        self._signal()
        self._pending = False
        took = max(self._header[ANSWERED_AT] - self._began, 0)
        self._steps += 1
        self._missed += took > self._deadline_ns
        self._last = took / 1e9
        self._worst = max(self._worst, self._last)
        failed = self._header[FAILED] & 0xFFFFFFFF
        if failed == 2:
            raise StepFailed(f"an output of the control loop {self.name} is NaN or infinite")
        if failed:
            raise StepFailed(self._reason() or f"a step of the control loop {self.name} failed; the log has the reason")

    def _spin(self, limit: float) -> None:
        header, before, end = self._header, self._before, self._began + int(limit * 1e9)
        while header[ANSWERED] == before and time.monotonic_ns() < end:
            pass

    def _ready(self, limit: float) -> bool:
        end = time.monotonic() + limit
        while True:
            left = max(end - time.monotonic(), 0.0)
            events = self._poll.poll(min(left * 1e3 + 0.5, 2**31 - 1))
            if any(fd == self._answer for fd, _ in events):
                return True
            if events:
                raise self._lost()
            if left <= 0.0:
                return False

    def _signal(self) -> None:
        """Reads the signal of an answer. The end of the socket is none: it is readable too when the daemon is gone."""
        try:
            if os.read(self._answer, 8):
                return
        except OSError:
            pass
        raise self._lost()

    def _lost(self) -> ConnectError:
        return ConnectError(self._reason() or f"the daemon closed the control loop {self.name}")

    def _reason(self) -> Optional[str]:
        """Message of the error line that the daemon sends when a loop fails, if it has arrived."""
        try:
            body = json.loads(self._socket.recv(1 << 16))
        except (OSError, ValueError):
            return None
        return APIError.parse(body).message or None

    @property
    def counts(self) -> Counts:
        """Steps of this client so far, timed from `start` to the daemon's answer."""
        return Counts(self._steps, self._missed, self._last, self._worst)

    def close(self) -> None:
        """Frees the loop for another client. Arrays that share the memory stay valid."""
        self._socket.close()
        for fd in self._fds:
            os.close(fd)
        self._fds = []
        self.inputs, self.outputs = {}, {}
        self._memory = None

    def __enter__(self) -> "ControlLoop":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_memory"):
            self.close()

    def __repr__(self) -> str:
        def names(tensors: Dict[str, Tensor]) -> Dict[str, Tuple[int, ...]]:
            return {name: tensor.shape for name, tensor in tensors.items()}

        return f"ControlLoop({self.name!r}, inputs={names(self.inputs)}, outputs={names(self.outputs)})"
