"""Tensors of `f32` in memory of this process, with the interfaces of NumPy and DLPack."""

import array
import base64
import math
import struct
import sys
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

from . import dlpack
from .errors import OrindError


def count(shape: Sequence[int]) -> int:
    """Number of values of a shape."""
    return math.prod(shape)


class Tensor:
    """Contiguous `f32` values with a shape.

    `numpy()`, `numpy.asarray`, `torch.from_dlpack` and `memory` share the values without a copy. A tensor of a control
    loop is the loop's memory: its values change with each step.
    """

    def __init__(self, memory: memoryview, shape: Sequence[int]) -> None:
        if not all(isinstance(extent, int) and extent >= 0 for extent in shape):
            raise ValueError(f"shape {shape!r} has an extent that is no number from 0 on")
        self.shape: Tuple[int, ...] = tuple(shape)
        flat = memory.cast("B") if memory.format != "B" else memory
        if flat.nbytes != 4 * count(self.shape):
            raise ValueError(f"{flat.nbytes} bytes are no f32 values of shape {self.shape}")
        self.memory: "memoryview[Any]" = flat.cast("f")

    @classmethod
    def of(cls, values: Any) -> "Tensor":
        """Returns a tensor with these values: numbers, nested lists, an array of NumPy, or any buffer.

        An array of `f32` in C order is used without a copy.
        """
        if isinstance(values, Tensor):
            return values
        if hasattr(values, "__array_interface__"):
            return _from_numpy(values)
        try:
            view = memoryview(values)
        except TypeError:
            shape, flat = _flatten(values)
            return cls(memoryview(array.array("f", flat)).cast("B"), shape)
        return _from_buffer(view)

    @classmethod
    def decode(cls, place: Dict[str, Any]) -> "Tensor":
        """Returns a tensor from `shape` and `values`, in base 64 or as numbers, as the daemon writes them."""
        values, shape = place["values"], place["shape"]
        if isinstance(values, str):
            return cls(memoryview(bytearray(base64.b64decode(values))), shape)
        return cls(memoryview(array.array("f", values)).cast("B"), shape)

    def encode(self) -> Dict[str, Any]:
        """Returns `shape` and `data`, as the daemon reads them."""
        return {"shape": list(self.shape), "data": base64.b64encode(self.memory.cast("B")).decode("ascii")}

    def set(self, values: Any) -> None:
        """Copies values into this tensor: one number for all, or as many as it has, in any shape."""
        if isinstance(values, (int, float)):
            self.memory[:] = array.array("f", [values]) * len(self.memory)
            return
        source = Tensor.of(values)
        if len(source.memory) != len(self.memory):
            raise ValueError(f"shape {source.shape} has {len(source.memory)} values, not those {len(self.memory)} "
                             f"of {self.shape}")
        self.memory[:] = source.memory

    def numpy(self) -> Any:
        """Returns an array of NumPy that shares the values."""
        try:
            import numpy
        except ImportError as error:
            raise OrindError("numpy is not installed; use `memory`, `tolist()` or DLPack") from error
        return numpy.frombuffer(self.memory, numpy.float32, len(self.memory)).reshape(self.shape)

    @property
    def __array_interface__(self) -> Dict[str, Any]:
        return {"version": 3, "shape": self.shape, "typestr": "<f4", "data": self.memory}

    def __dlpack__(self, *, copy: Optional[bool] = None, dl_device: Optional[Tuple[int, int]] = None, **_: Any) -> Any:
        """Returns a DLPack capsule that shares the values, or has a copy if one is requested."""
        if dl_device is not None and tuple(dl_device) != dlpack.CPU:
            raise BufferError(f"the values are in the CPU's memory, not on device {dl_device}")
        if copy:
            return self.copy().__dlpack__()
        if self.memory.readonly:
            raise BufferError("the values are read-only, which DLPack cannot express")
        return dlpack.export(self.memory, self.shape)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return dlpack.CPU

    def tolist(self) -> Any:
        """Returns nested lists, or a number if the shape is empty."""
        return _nest(self.memory.tolist(), self.shape)

    def copy(self) -> "Tensor":
        """Returns a tensor with its own memory."""
        return Tensor(memoryview(bytearray(self.memory.cast("B"))), self.shape)

    def row(self, index: int) -> "Tensor":
        """Returns entry `index` of the first axis, sharing the values."""
        if not self.shape or not 0 <= index < self.shape[0]:
            raise IndexError(f"no row {index} in shape {self.shape}")
        size = count(self.shape[1:])
        return Tensor(self.memory[index * size:(index + 1) * size], self.shape[1:])

    def reshape(self, shape: Sequence[int]) -> "Tensor":
        """Returns a tensor of another shape that shares the values."""
        return Tensor(self.memory, shape)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without axes has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        first = ", ".join(f"{value:g}" for value in self.memory[:6])
        return f"Tensor(shape={self.shape}, values=[{first}{', ...' if len(self.memory) > 6 else ''}])"


def _from_numpy(values: Any) -> Tensor:
    import numpy

    source = numpy.asarray(values)
    if source.dtype.kind not in "fiub":
        raise ValueError(f"values of type {source.dtype} are no numbers")
    flat = numpy.ascontiguousarray(source, dtype="<f4").reshape(source.shape)
    bytes_: Any = flat.reshape(-1).view(numpy.uint8)
    return Tensor(memoryview(bytes_), source.shape)


def _from_buffer(view: memoryview) -> Tensor:
    shape = view.shape or ()
    if view.format in ("f", "<f") and view.c_contiguous:
        return Tensor(view.cast("B"), shape)
    flat = _flatten(view.tolist())[1]
    return Tensor(memoryview(array.array("f", flat)).cast("B"), shape)


def _nest(values: List[Any], shape: Tuple[int, ...]) -> Any:
    if len(shape) < 2:
        return values if shape else values[0]
    step = len(values) // shape[0] if shape[0] else 0
    return [_nest(values[i * step:(i + 1) * step], shape[1:]) for i in range(shape[0])]


def _flatten(values: Any) -> Tuple[List[int], List[float]]:
    """Shape and values of nested sequences."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        return [], [float(values)]
    parts = [_flatten(part) for part in values]
    shapes = [shape for shape, _ in parts]
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError(f"nested lists are not of equal length: {shapes[0]} and others")
    return [len(parts), *(shapes[0] if shapes else [])], [value for _, flat in parts for value in flat]


if sys.byteorder != "little" or struct.calcsize("f") != 4:
    raise OrindError("the daemon's tensors are little-endian, and so must be this machine")
