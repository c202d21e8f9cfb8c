#!/usr/bin/env python3
"""Counts the passing cases of nodes.bin.z by operator, from expected.txt.

    python3 rates.py        # onnx 1.23.2

Counts cases of one operator with tensors of 16- to 64-bit floats, 8- to 64-bit integers and booleans. Control flow,
optionals, images, text and randomness are counted separately. Models in which ONNX expands an operator to others
(`_expanded`) are omitted.
"""

import collections
import pathlib
import struct
import zlib

import onnx
from onnx import TensorProto as T

HERE = pathlib.Path(__file__).parent
PLAIN = {T.FLOAT, T.FLOAT16, T.DOUBLE, T.BFLOAT16, T.BOOL}
PLAIN |= {T.INT8, T.INT16, T.INT32, T.INT64, T.UINT8, T.UINT16, T.UINT32, T.UINT64}
# Follows onnxruntime, which differs from ONNX (crates/onnx/tests/onnx/nodes.rs).
DIFFERENT = {"test_maxunpool_export_with_output_shape"}
APART = {"If", "Loop", "Scan", "OptionalHasElement", "OptionalGetElement", "ImageDecoder", "TfIdfVectorizer", "Bernoulli"}


def cases():
    data, at = zlib.decompress((HERE / "nodes.bin.z").read_bytes()), 0
    chunks = []
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        chunks.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    left = iter(chunks)
    for name in left:
        model, counts = next(left), next(left)
        for _ in range(counts[0] + counts[1]):
            next(left)
        yield name.decode(), onnx.load_from_string(model)


def main():
    refused = {line.split(":")[0] for line in (HERE / "expected.txt").read_text().splitlines()}
    rates = collections.defaultdict(lambda: [0, 0])
    for name, model in cases():
        graph = model.graph
        values = [v.type for v in (*graph.input, *graph.output, *graph.value_info)]
        plain = all(v.HasField("tensor_type") and v.tensor_type.elem_type in PLAIN for v in values)
        if not plain or "_expanded" in name or any(node.domain for node in graph.node):
            continue
        rate = rates[graph.node[-1].op_type]
        rate[0] += name not in refused | DIFFERENT
        rate[1] += 1
    for op, (passed, count) in sorted(rates.items()):
        print(f"{op:<28}{passed:>4} of {count:>3}{'  apart' if op in APART else ''}")
    counted = [rate for op, rate in rates.items() if op not in APART]
    passed, count = map(sum, zip(*counted))
    whole, some = sum(p == n for p, n in counted), sum(p > 0 for p, n in counted)
    print(f"{passed} of {count} cases; of {len(counted)} operators {whole} with all of theirs, {some} with some")


if __name__ == "__main__":
    main()
