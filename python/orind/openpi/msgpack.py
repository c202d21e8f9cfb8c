"""MessagePack with arrays, as openpi-client writes them.

An array is a map of the binary keys `__ndarray__`, `data`, `dtype` and `shape`; a scalar of NumPy one of
`__npgeneric__`, `data` and `dtype`. Data of arrays is not copied.
"""

import array
import struct
from typing import Any, Dict, List, Sequence, Tuple

from ..tensor import Tensor, count

MAX_DEPTH = 32
MAX_ITEMS = 100_000
MAX_AXES = 32

# Codes of `struct` for the types of arrays whose values are numbers.
_NUMBERS = {"f2": "e", "f4": "f", "f8": "d", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H",
            "u4": "I", "u8": "Q", "b1": "?"}


class Invalid(ValueError):
    """A message that is no MessagePack, or exceeds a limit."""


class Array:
    """An array as it arrived: type in NumPy's notation, shape, and its bytes in C order."""

    def __init__(self, dtype: str, shape: Tuple[int, ...], data: memoryview) -> None:
        order, kind = (dtype[0], dtype[1:]) if dtype[:1] in ("<", ">", "|", "=") else ("<", dtype)
        if kind not in _NUMBERS:
            raise Invalid(f"an array of type {dtype} has no numbers")
        if len(shape) > MAX_AXES or any(type(extent) is not int or extent < 0 for extent in shape):
            raise Invalid("an array's shape is no list of numbers from 0 on")
        if count(shape) * int(kind[1]) != data.nbytes:
            raise Invalid(f"{data.nbytes} bytes are no array of {dtype} with shape {list(shape)}")
        self.dtype, self.shape, self.data = dtype, shape, data
        self._format = (">" if order == ">" else "<") + _NUMBERS[kind]

    def tensor(self) -> Tensor:
        """Returns the values as `f32`."""
        if self._format == "<f":
            return Tensor(memoryview(bytearray(self.data)), self.shape)
        try:
            import numpy
        except ImportError:
            return self._converted()
        values = numpy.frombuffer(self.data, numpy.dtype(self._format)).reshape(self.shape)
        return Tensor.of(values.astype("<f4"))

    def _converted(self) -> Tensor:
        order, code = self._format[0], self._format[1]
        size = struct.calcsize(self._format)
        values = array.array("f")
        for at in range(0, self.data.nbytes, size << 16):
            part = self.data[at:at + (size << 16)]
            values.extend(struct.unpack(f"{order}{part.nbytes // size}{code}", part))
        return Tensor.of(values).reshape(self.shape)


class _Reader:
    def __init__(self, data: memoryview) -> None:
        self.data, self.at, self.items = data, 0, 0

    def take(self, size: int) -> memoryview:
        end = self.at + size
        if end > len(self.data):
            raise Invalid("the message is cut")
        part, self.at = self.data[self.at:end], end
        return part

    def number(self, code: str) -> Any:
        return struct.unpack(f">{code}", self.take(struct.calcsize(f">{code}")))[0]

    def read(self, depth: int = 0) -> Any:
        self.items += 1
        if self.items > MAX_ITEMS or depth > MAX_DEPTH:
            raise Invalid(f"the message has more than {MAX_ITEMS} values, or more than {MAX_DEPTH} levels; "
                          "send arrays instead of lists")
        kind = self.take(1)[0]
        if kind < 0x80:
            return kind
        if kind < 0x90:
            return self.map(kind & 15, depth)
        if kind < 0xA0:
            return self.list(kind & 15, depth)
        if kind < 0xC0:
            return self.text(kind & 31)
        if kind >= 0xE0:
            return kind - 256
        return self.other(kind, depth)

    def other(self, kind: int, depth: int) -> Any:
        if kind in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[kind]
        numbers = {0xCA: "f", 0xCB: "d", 0xCC: "B", 0xCD: "H", 0xCE: "I", 0xCF: "Q", 0xD0: "b", 0xD1: "h", 0xD2: "i",
                   0xD3: "q"}
        if kind in numbers:
            return self.number(numbers[kind])
        sizes = {0xC4: "B", 0xC5: "H", 0xC6: "I", 0xD9: "B", 0xDA: "H", 0xDB: "I", 0xDC: "H", 0xDD: "I", 0xDE: "H",
                 0xDF: "I"}
        if kind not in sizes:
            raise Invalid(f"byte 0x{kind:02x} begins no value that is supported")
        size = self.number(sizes[kind])
        if kind <= 0xC6:
            return self.take(size)
        if kind <= 0xDB:
            return self.text(size)
        return self.list(size, depth) if kind <= 0xDD else self.map(size, depth)

    def text(self, size: int) -> str:
        try:
            return bytes(self.take(size)).decode("utf-8")
        except UnicodeDecodeError as error:
            raise Invalid(f"a text is no UTF-8: {error.reason}") from error

    def list(self, size: int, depth: int) -> List[Any]:
        return [self.read(depth + 1) for _ in range(size)]

    def map(self, size: int, depth: int) -> Any:
        content: Dict[Any, Any] = {}
        for _ in range(size):
            key = self.read(depth + 1)
            if isinstance(key, memoryview):
                key = bytes(key)
            if not isinstance(key, (str, bytes, int)):
                raise Invalid("a key of a map is neither text nor number")
            content[key] = self.read(depth + 1)
        return _special(content)


def _special(content: Dict[Any, Any]) -> Any:
    if b"__ndarray__" in content:
        dtype, shape, data = (content.get(key) for key in (b"dtype", b"shape", b"data"))
        if not isinstance(dtype, str) or not isinstance(shape, list) or not isinstance(data, memoryview):
            raise Invalid("an array needs dtype, shape and data")
        return Array(dtype, tuple(shape), data)
    if b"__npgeneric__" in content:
        value = content.get(b"data")
        if not isinstance(value, (bool, int, float)):
            raise Invalid("a scalar of NumPy has no number")
        return value
    return content


def unpack(data: Any) -> Any:
    """Parses one message."""
    reader = _Reader(memoryview(data))
    value = reader.read()
    if reader.at != len(reader.data):
        raise Invalid(f"{len(reader.data) - reader.at} bytes follow the message")
    return value


def pack(value: Any) -> bytes:
    """Serializes a value; tensors become arrays of `f32`."""
    parts: List[bytes] = []
    _pack(value, parts)
    return b"".join(parts)


def _pack(value: Any, parts: List[bytes]) -> None:
    if value is None or value is True or value is False:
        parts.append({None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value])
    elif isinstance(value, int):
        parts.append(struct.pack(">Bq", 0xD3, value) if value < 1 << 63 else struct.pack(">BQ", 0xCF, value))
    elif isinstance(value, float):
        parts.append(struct.pack(">Bd", 0xCB, value))
    elif isinstance(value, str):
        data = value.encode("utf-8", "replace")
        parts += [struct.pack(">BI", 0xDB, len(data)), data]
    elif isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        parts += [struct.pack(">BI", 0xC6, len(data)), data]
    elif isinstance(value, Tensor):
        _pack({b"__ndarray__": True, b"data": value.memory.cast("B"), b"dtype": "<f4", b"shape": value.shape}, parts)
    elif isinstance(value, dict):
        parts.append(struct.pack(">BI", 0xDF, len(value)))
        for key, content in value.items():
            _pack(key, parts)
            _pack(content, parts)
    elif isinstance(value, Sequence):
        parts.append(struct.pack(">BI", 0xDD, len(value)))
        for content in value:
            _pack(content, parts)
    elif hasattr(value, "__array_interface__"):
        _pack(Tensor.of(value), parts)
    else:
        raise TypeError(f"{type(value).__name__} has no form in MessagePack")
