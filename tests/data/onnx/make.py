#!/usr/bin/env python3
"""Writes nodes.bin.z: ONNX's backend tests of nodes, which are models with inputs and outputs.

    pip install onnx==1.23.2 ml_dtypes
    python3 make.py [--most BYTES] [OUT]

The file is a deflated sequence of chunks, each preceded by its length (u32, little-endian). A case has a chunk with its
name, the model, a chunk with the numbers of inputs and outputs (two bytes), and those inputs and outputs, each a
TensorProto. Cases with values that are not tensors (sequences, optionals, strings) are omitted, and those of more than
BYTES bytes (default 60,000).
"""

import argparse
import struct
import warnings
import zlib

import numpy as np
from onnx import TensorProto, numpy_helper
from onnx.backend.test.case.node import collect_testcases


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", default="nodes.bin.z")
    parser.add_argument("--most", type=int, default=60_000)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    data, kept, left = bytearray(), 0, {}
    for case in sorted(collect_testcases(None), key=lambda case: case.name):
        chunks, why = case_chunks(case)
        if not why and sum(map(len, chunks)) > args.most:
            why = "large"
        if why:
            left[why] = left.get(why, 0) + 1
            continue
        kept += 1
        for chunk in chunks:
            data += struct.pack("<I", len(chunk)) + chunk
    packed = zlib.compress(bytes(data), 9)
    with open(args.out, "wb") as file:
        file.write(packed)
    print(f"{kept} cases, {len(packed)} bytes; left out: {left}")


def case_chunks(case):
    chunks = [case.name.encode(), case.model.SerializeToString()]
    inputs, outputs = case.data_sets[0]
    tensors = []
    for values, infos in ((inputs, case.model.graph.input), (outputs, case.model.graph.output)):
        for value, info in zip(values, infos):
            if isinstance(value, TensorProto):
                tensor = TensorProto()
                tensor.CopyFrom(value)
                tensor.name = info.name
            elif isinstance(value, np.ndarray) or np.isscalar(value):
                tensor = numpy_helper.from_array(np.asarray(value), info.name)
            else:
                return [], "no tensor"
            if tensor.data_type == TensorProto.STRING:
                return [], "text"
            tensors.append(tensor.SerializeToString())
    chunks.append(bytes([len(inputs), len(outputs)]))
    return chunks + tensors, None


if __name__ == "__main__":
    main()
