#!/usr/bin/env python3
"""Generates the files that `crates/nn/tests/files.rs` reads, with NumPy and the safetensors package."""

import pathlib

import numpy as np
from safetensors import numpy as safetensors

HERE = pathlib.Path(__file__).parent
values = np.arange(6, dtype=np.float64).reshape(2, 3) * 0.5 - 1
for name, dtype in {"f4": "<f4", "f8": "<f8", "i4": "<i4", "i8": "<i8", "f2": "<f2", "u1": "u1", "u2": "<u2"}.items():
    np.save(HERE / f"array-{name}.npy", values.astype(dtype))
np.save(HERE / "array-fortran.npy", np.asfortranarray(values.astype("<f4")))
np.save(HERE / "array-one.npy", np.float32(2.5))
safetensors.save_file({
    "single": values.astype(np.float32), "half": values.astype(np.float16), "double": values,
    "int": values.astype(np.int32), "long": values.astype(np.int64), "none": np.zeros((0, 3), np.float32),
}, HERE / "arrays.safetensors")
safetensors.save_file({
    "signed": values.astype(np.int8), "unsigned": np.array([0, 255], np.uint8), "truth": np.array([False, True]),
}, HERE / "bytes.safetensors")
safetensors.save_file({"shorts": values.astype(np.int16)}, HERE / "shorts.safetensors")
