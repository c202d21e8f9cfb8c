#!/usr/bin/env python3
"""Generates policy.onnx, a 12-128-128-4 policy with seeded weights, and policy.json, an observation and the action
that numpy computes for it in f64. Needs numpy and onnx from PyPI.
"""
import json
import os

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

here = os.path.dirname(os.path.abspath(__file__))
random = np.random.default_rng(12)
sizes = [12, 128, 128, 4]
nodes, weights, x = [], [], "observation"
observation = random.normal(size=12).astype(np.float32)
exact = observation.astype(np.float64)
for i, (n, m) in enumerate(zip(sizes, sizes[1:])):
    w = (random.normal(size=(n, m)) / np.sqrt(n)).astype(np.float32)
    b = random.normal(scale=0.1, size=m).astype(np.float32)
    weights += [numpy_helper.from_array(w, f"w{i}"), numpy_helper.from_array(b, f"b{i}")]
    y = "action" if i == 2 else f"h{i}"
    nodes += [helper.make_node("Gemm", [x, f"w{i}", f"b{i}"], [f"s{i}"]), helper.make_node("Tanh", [f"s{i}"], [y])]
    x, exact = y, np.tanh(exact @ w.astype(np.float64) + b)
graph = helper.make_graph(
    nodes, "policy",
    [helper.make_tensor_value_info("observation", TensorProto.FLOAT, ["batch", 12])],
    [helper.make_tensor_value_info("action", TensorProto.FLOAT, ["batch", 4])], weights)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.checker.check_model(model)
onnx.save(model, f"{here}/policy.onnx")
with open(f"{here}/policy.json", "w") as out:
    json.dump({"observation": observation.tolist(), "action": exact.tolist()}, out)
    out.write("\n")
