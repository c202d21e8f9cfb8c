"""DLPack export of host memory, for PyTorch, JAX and others, without NumPy.

The structures are those of DLPack's `dlpack.h` before version 1.0, which every consumer accepts.
"""

import ctypes
from typing import Any, Dict, Tuple

CPU = (1, 0)


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Managed._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]

# Exported tensors by the address of their structure, each with everything that it points to.
_exported: Dict[int, Tuple[Any, ...]] = {}


def _release(address: int, exported: Dict[int, Tuple[Any, ...]] = _exported) -> None:
    exported.pop(address, None)


_delete = _Deleter(_release)


_NAME = b"dltensor"
_python = ctypes.pythonapi
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _python))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _python))
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Destructor)(("PyCapsule_New", _python))


def _abandon(capsule: int) -> None:
    # A consumer renames the capsule, and then calls the deleter itself.
    if _is_valid(capsule, _NAME):
        _release(_pointer(capsule, _NAME))


_destroy = _Destructor(_abandon)


# Consumers may release tensors while the interpreter ends, when this module is gone.
for _callback in (_delete, _destroy):
    _python.Py_IncRef(ctypes.py_object(_callback))


def export(memory: memoryview, shape: Tuple[int, ...]) -> Any:
    """Returns a capsule with contiguous `f32` values of `memory`, which must be writable."""
    base = (ctypes.c_char * memory.nbytes).from_buffer(memory) if memory.nbytes else None
    extents = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    steps = (ctypes.c_int64 * max(len(shape), 1))()
    step = 1
    for axis in reversed(range(len(shape))):
        steps[axis], step = step, step * shape[axis]
    managed = _Managed()
    tensor = managed.tensor
    tensor.data = ctypes.addressof(base) if base is not None else None
    tensor.device_type, tensor.device_id = CPU
    tensor.ndim, tensor.code, tensor.bits, tensor.lanes = len(shape), 2, 32, 1
    tensor.shape = ctypes.cast(extents, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = ctypes.cast(steps, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = _delete
    address = ctypes.addressof(managed)
    _exported[address] = (managed, base, extents, steps, memory)
    return _new(address, _NAME, _destroy)
