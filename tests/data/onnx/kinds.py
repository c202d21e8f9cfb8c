#!/usr/bin/env python3
"""Writes kinds.bin.z: models of the kinds that exporters and optimisers write, with onnxruntime's answers.

    pip install onnx==1.23.2 onnxruntime==1.32.0
    python3 kinds.py [OUT]

Covers control flow, functions, sequences, data-dependent shapes, com.microsoft and ai.onnx.ml. The format is that of
nodes.bin.z (make.py). Maps (ZipMap) become rows of their values.
"""

import struct
import sys
import zlib

import numpy as np
import onnxruntime
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

F, I, U8, I8, I32 = np.float32, np.int64, np.uint8, np.int8, np.int32
RANDOM = np.random.default_rng(0)
CASES = []


def f(*shape):
    return RANDOM.standard_normal(shape).astype(F)


def u(*shape):
    return RANDOM.integers(0, 256, shape).astype(U8)


def node(op, inputs, outputs, domain="", **attributes):
    return h.make_node(op, inputs, outputs, domain=domain, **attributes)


def ms(op, inputs, outputs, **attributes):
    return node(op, inputs, outputs, "com.microsoft", **attributes)


def ml(op, inputs, outputs, **attributes):
    return node(op, inputs, outputs, "ai.onnx.ml", **attributes)


def value(name, elem=T.FLOAT, shape=None):
    return h.make_tensor_value_info(name, elem, shape)


def body(nodes, inputs, outputs, constants=()):
    return h.make_graph(nodes, "body", inputs, outputs, [nh.from_array(np.asarray(v), k) for k, v in constants])


def case(name, nodes, feeds, outputs, constants=None, opset=18, functions=(), ir=10, shapes=None):
    """Adds a case: `outputs` are names of floats, or pairs of a name and a type."""
    nodes = nodes if isinstance(nodes, list) else [nodes]
    outputs = [o if isinstance(o, tuple) else (o, T.FLOAT) for o in outputs]
    infos = [v if not isinstance(v, int) else value(k, v) for k, v in outputs]
    shapes = {k: list(v.shape) for k, v in feeds.items()} | (shapes or {})
    inputs = [value(k, h.np_dtype_to_tensor_dtype(v.dtype), shapes[k]) for k, v in feeds.items()]
    initial = [nh.from_array(np.asarray(v), k) for k, v in (constants or {}).items()]
    sets = [h.make_opsetid(d, v) for d, v in (("", opset), ("com.microsoft", 1), ("ai.onnx.ml", 3), ("my", 1))]
    graph = h.make_graph(nodes, name, inputs, infos, initial)
    model = h.make_model(graph, opset_imports=sets, ir_version=ir, functions=list(functions))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    right = []
    for (key, _), found in zip(outputs, session.run(None, feeds)):
        if isinstance(found, list):
            found = np.array([[row[k] for k in sorted(row)] for row in found], F)
        right.append(nh.from_array(np.asarray(found), key))
    given = [nh.from_array(v, k) for k, v in feeds.items()]
    chunks = [f"kind_{name}".encode(), model.SerializeToString(), bytes([len(given), len(right)])]
    CASES.append(chunks + [tensor.SerializeToString() for tensor in given + right])


def control_flow():
    x = f(2, 3)
    inner = body([node("Mul", ["x", "x"], ["q"])], [], [value("q")])
    other = body([node("Neg", ["x"], ["q2"])], [], [value("q2")])
    yes = node("Constant", [], ["yes"], value=nh.from_array(np.array(True), "v"))
    nested = body([yes, node("If", ["yes"], ["t"], then_branch=inner, else_branch=other)], [], [value("t")])
    same = body([node("Identity", ["x"], ["e"])], [], [value("e")])
    short = body([node("ReduceMax", ["x"], ["e"])], [], [value("e")])
    size = [node("Size", ["x"], ["n"]), node("Greater", ["n", "four"], ["c"])]
    choice = node("If", ["c"], ["y"], then_branch=nested, else_branch=same)
    four = {"four": np.array(4, I)}
    case("if_of_a_shape", [*size, choice], {"x": x}, ["y"], four)
    case("if_of_an_input", choice, {"x": x, "c": np.array(False)}, ["y"])
    sums = [node("ReduceSum", ["x"], ["s"], keepdims=0), node("Greater", ["s", "zero"], ["c"])]
    zero = {"zero": np.array(0, F)}
    case("if_of_data", [*sums, choice], {"x": f(90, 3)}, ["y"], zero)
    choice = node("If", ["c"], ["y"], then_branch=nested, else_branch=short)
    case("if_of_data_with_two_shapes", [*sums, choice], {"x": f(90, 3)}, ["y"], {"zero": np.array(99, F)})

    states = [value("i", T.INT64, []), value("c", T.BOOL, []), value("v")]
    steps = [
        node("Add", ["v", "x"], ["v2"]),
        node("Cast", ["i"], ["fi"], to=T.FLOAT),
        node("Mul", ["v2", "fi"], ["row"]),
        node("Identity", ["c"], ["c2"]),
    ]
    loop = body(steps, states, [value("c2", T.BOOL), value("v2"), value("row")])
    start = np.zeros((2, 3), F)
    for name, count in (("", 4), ("_of_nothing", 0)):
        case("loop" + name, node("Loop", ["m", "", "v0"], ["v", "y"], body=loop), {"x": x}, ["v", "y"],
             {"m": np.array(count, I), "v0": start})
    case("loop_of_an_input", node("Loop", ["m", "", "v0"], ["v", "y"], body=loop), {"x": x, "m": np.array(3, I)},
         ["v", "y"], {"v0": start})
    steps = [
        node("Mul", ["v", "two"], ["v2"]),
        node("ReduceMax", ["v2"], ["most"], keepdims=0),
        node("Less", ["most", "limit"], ["c2"]),
    ]
    loop = body(steps, states, [value("c2", T.BOOL), value("v2")])
    case("loop_until_data", node("Loop", ["", "go", "x"], ["y"], body=loop), {"x": np.abs(f(80, 3))}, ["y"],
         {"go": np.array(True), "two": np.array(2, F), "limit": np.array(100, F)})
    steps = [
        node("Gather", ["x", "i"], ["row"]),
        node("SequenceInsert", ["v", "row"], ["v2"]),
        node("Identity", ["c"], ["c2"]),
    ]
    sequence = [h.make_tensor_sequence_value_info(n, T.FLOAT, None) for n in ("v", "v2")]
    loop = body(steps, [*states[:2], sequence[0]], [value("c2", T.BOOL), sequence[1]])
    case("loop_over_a_sequence", [
        node("SequenceEmpty", [], ["s0"]),
        node("Loop", ["m", "", "s0"], ["s"], body=loop),
        node("ConcatFromSequence", ["s"], ["y"], axis=0, new_axis=1),
    ], {"x": f(4, 3)}, ["y"], {"m": np.array(4, I)})

    scan = body([node("Add", ["s", "e"], ["t"]), node("Mul", ["t", "e"], ["o"])], [value("s"), value("e")],
                [value("t"), value("o")])
    case("scan", node("Scan", ["z", "x"], ["a", "y"], body=scan, num_scan_inputs=1), {"x": f(4, 3)}, ["a", "y"],
         {"z": np.zeros(3, F)})
    case("scan_backward", node("Scan", ["z", "x"], ["a", "y"], body=scan, num_scan_inputs=1, scan_input_axes=[1],
                               scan_input_directions=[1], scan_output_directions=[1], scan_output_axes=[1]),
         {"x": f(4, 3)}, ["a", "y"], {"z": np.zeros(4, F)})


def functions():
    def refer(made, name, outer):
        attribute = made.attribute.add()
        attribute.name, attribute.ref_attr_name, attribute.type = name, outer, 1
        return made

    def function(name, nodes, attributes=(), defaults=()):
        sets = [h.make_opsetid("", 18), h.make_opsetid("my", 1)]
        return h.make_function("my", name, ["a"], ["b"], nodes, sets, list(attributes), list(defaults))

    leaky = function("Leaky", [refer(node("LeakyRelu", ["a"], ["b"]), "alpha", "slope")], ["slope"])
    elu = function("Bent", [refer(node("Elu", ["a"], ["b"]), "alpha", "alpha")], (), [h.make_attribute("alpha", 0.5)])
    inner = refer(node("Leaky", ["a"], ["c"], "my"), "slope", "steep")
    both = function("Both", [inner, node("Bent", ["c"], ["b"], "my")], ["steep"])
    all_of_them = [leaky, elu, both]
    x = f(2, 3)
    case("function_attribute", node("Leaky", ["x"], ["y"], "my", slope=0.3), {"x": x}, ["y"], functions=all_of_them)
    case("function_default", node("Bent", ["x"], ["y"], "my"), {"x": x}, ["y"], functions=all_of_them)
    case("function_nested", [node("Both", ["x"], ["t"], "my", steep=0.3), node("Both", ["t"], ["y"], "my", steep=0.1)],
         {"x": x}, ["y"], functions=all_of_them)


def data_dependent():
    case("non_zero", [node("NonZero", ["x"], ["i"]), node("Transpose", ["i"], ["j"]),
                      node("GatherND", ["x", "j"], ["y"])], {"x": np.round(f(10, 20))}, ["y"])
    case("compress", node("Compress", ["x", "m"], ["y"], axis=0),
         {"x": f(200, 3), "m": RANDOM.integers(0, 2, 200).astype(bool)}, ["y"])
    integers = [("i", T.INT64), ("j", T.INT64), ("k", T.INT64)]
    case("unique", node("Unique", ["x"], ["y", "i", "j", "k"]), {"x": np.round(f(100))}, ["y", *integers])
    centre, size = RANDOM.uniform(0, 100, (1, 60, 2)), RANDOM.uniform(5, 30, (1, 60, 2))
    boxes = np.concatenate([centre - size / 2, centre + size / 2], -1).astype(F)
    limits = {"k": np.array([10], I), "iou": np.array([0.5], F), "t": np.array([0.3], F)}
    suppress = node("NonMaxSuppression", ["b", "s", "k", "iou", "t"], ["i"])
    take = [node("Gather", ["i", "two"], ["j"], axis=1), node("Squeeze", ["b", "zero"], ["all"]),
            node("Gather", ["all", "j"], ["y"])]
    case("boxes", [suppress, *take], {"b": boxes, "s": RANDOM.random((1, 2, 60)).astype(F)}, [("i", T.INT64), "y"],
         {**limits, "two": np.array(2, I), "zero": np.array([0], I)})
    shape = node("Shape", ["x"], ["s"])
    fill = node("ConstantOfShape", ["d"], ["y"])
    for op, nodes in {
        "mod": [node("Mod", ["s", "two"], ["e"]), node("Add", ["e", "one"], ["d"])],
        "top_k": [node("TopK", ["s", "one"], ["d", "e"])],
        "cum_sum": [node("CumSum", ["s", "zero"], ["d"])],
        "scatter": [node("ScatterND", ["s", "at", "one"], ["d"])],
        "arg_max": [node("ArgMax", ["s"], ["e"], axis=0), node("Add", ["e", "one"], ["d"])],
        "exp": [node("Cast", ["s"], ["e"], to=1), node("Log", ["e"], ["g"]), node("Exp", ["g"], ["k"]),
                node("Round", ["k"], ["n"]), node("Cast", ["n"], ["d"], to=7)],
        "compress": [node("Compress", ["s", "first"], ["d"])],
    }.items():
        case("shape_by_" + op, [shape, *nodes, fill], {"x": f(7, 5)}, ["y"],
             {"one": np.array([1], I), "two": np.array(2, I), "zero": np.array(0, I), "at": np.array([[1]], I),
              "first": np.array([True, False])})


def fused():
    x, s, w, b = f(1, 4, 8), f(1, 4, 8), f(8), f(8)
    case("gelu", ms("Gelu", ["x"], ["y"]), {"x": x}, ["y"])
    case("fast_gelu", ms("FastGelu", ["x", "w"], ["y"]), {"x": x}, ["y"], {"w": w})
    case("bias_gelu", ms("BiasGelu", ["x", "w"], ["y"]), {"x": x}, ["y"], {"w": w})
    case("quick_gelu", ms("QuickGelu", ["x"], ["y"], alpha=1.5), {"x": x}, ["y"])
    case("fused_matmul", ms("FusedMatMul", ["x", "s"], ["y"], transA=1, transB=1, alpha=0.5),
         {"x": f(2, 3, 4), "s": f(2, 5, 3)}, ["y"])
    case("fused_gemm", ms("FusedGemm", ["x", "w", "b"], ["y"], activation="LeakyRelu", activation_alpha=0.1, transB=1),
         {"x": f(3, 4)}, ["y"], {"w": f(5, 4), "b": f(5)})
    case("fused_conv", ms("FusedConv", ["x", "w", "b", "z"], ["y"], activation="Relu", pads=[1] * 4),
         {"x": f(1, 3, 5, 5), "z": f(1, 4, 5, 5)}, ["y"], {"w": f(4, 3, 3, 3), "b": f(4)})
    case("fused_conv_clip", ms("FusedConv", ["x", "w"], ["y"], activation="Clip", activation_params=[0.0, 0.5]),
         {"x": f(1, 3, 5, 5)}, ["y"], {"w": f(4, 3, 3, 3)})
    case("skip_norm", ms("SkipLayerNormalization", ["x", "s", "w", "b", "b"], ["y", "", "", "z"], epsilon=1e-5),
         {"x": x, "s": s}, ["y", "z"], {"w": w, "b": b})
    case("skip_rms", ms("SkipSimplifiedLayerNormalization", ["x", "s", "w"], ["y", "", "", "z"], epsilon=1e-5),
         {"x": x, "s": s}, ["y", "z"], {"w": w})
    case("rms", node("SimplifiedLayerNormalization", ["x", "w"], ["y"], epsilon=1e-5, axis=-1, stash_type=1), {"x": x},
         ["y"], {"w": w})
    case("embed_norm", ms("EmbedLayerNormalization", ["i", "g", "we", "pe", "se", "w", "b", "m"], ["y", "n"],
                          epsilon=1e-5),
         {"i": RANDOM.integers(0, 10, (2, 4)).astype(I32), "g": RANDOM.integers(0, 2, (2, 4)).astype(I32),
          "m": np.array([[1, 1, 0, 0], [1, 1, 1, 1]], I32)}, ["y", ("n", T.INT32)],
         {"we": f(10, 8), "pe": f(6, 8), "se": f(2, 8), "w": w, "b": b})


def attention():
    x, w, b = f(2, 5, 16), f(16, 48), f(48)
    made = {"w": w, "b": b}
    case("attention", ms("Attention", ["x", "w", "b"], ["y"], num_heads=4, unidirectional=1), {"x": x}, ["y"], made)
    for name, mask in (("lengths", np.array([3, 5], I32)), ("mask", np.array([[1, 1, 1, 0, 0], [1] * 5], I32))):
        case("attention_" + name, ms("Attention", ["x", "w", "b", "m"], ["y"], num_heads=4), {"x": x, "m": mask}, ["y"],
             made)
    case("attention_past", ms("Attention", ["x", "w", "b", "", "p"], ["y", "z"], num_heads=4, unidirectional=1),
         {"x": x, "p": f(2, 2, 4, 3, 4)}, ["y", "z"], made)
    case("multi_head", ms("MultiHeadAttention", ["x", "k", "v", "b", "m"], ["y"], num_heads=4),
         {"x": x, "k": f(2, 7, 16), "v": f(2, 7, 16), "m": np.array([[1] * 4 + [0] * 3, [1] * 7], I32)}, ["y"],
         {"b": b})
    tables = {"cos": f(32, 8), "sin": f(32, 8)}
    case("grouped_prompt", ms("GroupQueryAttention", ["q", "k", "v", "", "", "n", "t", "cos", "sin"], ["y", "a", "c"],
                              num_heads=4, kv_num_heads=2, do_rotary=1),
         {"q": f(2, 5, 64), "k": f(2, 5, 32), "v": f(2, 5, 32)}, ["y", "a", "c"],
         {**tables, "n": np.array([4, 4], I32), "t": np.array(5, I32)})
    case("grouped_decode", ms("GroupQueryAttention", ["q", "k", "v", "p", "o", "n", "t", "cos", "sin"],
                              ["y", "a", "c"], num_heads=4, kv_num_heads=2, do_rotary=1, local_window_size=3),
         {"q": f(2, 1, 64), "k": f(2, 1, 32), "v": f(2, 1, 32), "p": f(2, 2, 6, 16), "o": f(2, 2, 6, 16),
          "n": np.array([6, 6], I32), "t": np.array(7, I32)}, ["y", "a", "c"], tables)
    for name, ids in (("rows", np.array([[1, 2, 3], [0, 1, 2]], I)), ("first", np.array([4], I))):
        case("rotary_" + name, ms("RotaryEmbedding", ["x", "p", "cos", "sin"], ["y"], interleaved=1),
             {"x": f(2, 3, 32), "p": ids}, ["y"], tables)


def quantised():
    scales = {"as": np.array(0.02, F), "az": np.array(120, U8), "bs": np.array(0.03, F), "bz": np.array(100, U8),
              "ys": np.array(0.05, F), "yz": np.array(128, U8)}
    pair = ["a", "as", "az", "b", "bs", "bz", "ys", "yz"]
    for op in ("QLinearAdd", "QLinearMul"):
        case(op, ms(op, pair, ["y"]), {"a": u(3, 4), "b": u(4)}, [("y", T.UINT8)], scales)
    single = ["a", "as", "az", "ys", "yz"]
    for op, attributes in (("QLinearSigmoid", {}), ("QLinearLeakyRelu", {"alpha": 0.1}),
                           ("QLinearSoftmax", {"axis": -1, "opset": 13})):
        case(op, ms(op, single, ["y"], **attributes), {"a": u(3, 10)}, [("y", T.UINT8)],
             {**scales, "ys": np.array(1 / 256, F), "yz": np.array(0, U8)})
    case("QLinearConcat", ms("QLinearConcat", ["ys", "yz", "a", "as", "az", "b", "bs", "bz"], ["y"], axis=1),
         {"a": u(3, 4), "b": u(3, 5)}, [("y", T.UINT8)], scales)
    for last in (0, 1):
        case(f"QLinearGlobalAveragePool_{last}", ms("QLinearGlobalAveragePool", single, ["y"], channels_last=last),
             {"a": u(1, 4, 5, 6)}, [("y", T.UINT8)], scales)
    case("QLinearAveragePool", ms("QLinearAveragePool", single, ["y"], kernel_shape=[2, 2], strides=[2, 2]),
         {"a": u(1, 4, 6, 6)}, [("y", T.UINT8)], scales)
    case("QGemm", ms("QGemm", ["a", "as", "az", "b", "bs", "bz", "c", "ys", "yz"], ["y"], transB=1), {"a": u(3, 8)},
         [("y", T.UINT8)], {**scales, "b": u(5, 8), "c": RANDOM.integers(-500, 500, 5).astype(I32),
                            "ys": np.array(0.2, F)})
    case("DynamicQuantizeMatMul", ms("DynamicQuantizeMatMul", ["a", "b", "bs", "bz", "c"], ["y"]), {"a": f(3, 8)},
         ["y"], {**scales, "b": u(8, 5), "c": f(5)})
    case("MatMulIntegerToFloat", ms("MatMulIntegerToFloat", ["a", "b", "as", "bs", "az", "bz", "c"], ["y"]),
         {"a": u(3, 8)}, ["y"], {**scales, "b": u(8, 5), "c": f(5)})
    for bits, k, block in ((4, 64, 32), (4, 40, 16), (8, 64, 32)):
        blocks = -(-k // block)
        case(f"MatMulNBits_{bits}_{k}", ms("MatMulNBits", ["x", "w", "s", "z"], ["y"], K=k, N=6, bits=bits,
                                           block_size=block), {"x": f(2, k)}, ["y"],
             {"w": u(6, blocks, block * bits // 8), "s": RANDOM.uniform(0.01, 0.05, 6 * blocks).astype(F),
              "z": u(6 * -(-blocks * bits // 8))})
    lengths = np.array([5, 2, 3], I32)
    for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        weights = {"w": f(2, gates * 6, 4), "r": f(2, gates * 6, 6), "b": f(2, gates * 12)}
        case(op + "_lengths", node(op, ["x", "w", "r", "b", "n"], ["y", "h"], hidden_size=6,
                                   direction="bidirectional"), {"x": f(5, 3, 4), "n": lengths}, ["y", "h"], weights)


def learned():
    x = f(6, 3)
    tree = {k: [] for k in ("nodes_treeids", "nodes_nodeids", "nodes_featureids", "nodes_modes", "nodes_values",
                            "nodes_truenodeids", "nodes_falsenodeids")}
    leaves = []
    for number in range(3):
        for i in range(15):
            leaf = i >= 7
            tree["nodes_treeids"].append(number)
            tree["nodes_nodeids"].append(i)
            tree["nodes_featureids"].append(0 if leaf else int(RANDOM.integers(3)))
            mode = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT")[int(RANDOM.integers(4))]
            tree["nodes_modes"].append("LEAF" if leaf else mode)
            tree["nodes_values"].append(0.0 if leaf else float(F(RANDOM.standard_normal() / 2)))
            tree["nodes_truenodeids"].append(0 if leaf else 2 * i + 1)
            tree["nodes_falsenodeids"].append(0 if leaf else 2 * i + 2)
            if leaf:
                leaves.append((number, i))

    def ends(prefix, targets):
        rows = [(t, n, c, float(RANDOM.standard_normal())) for t, n in leaves for c in targets]
        keys = [f"{prefix}_{k}" for k in ("treeids", "nodeids", "ids", "weights")]
        return dict(zip(keys, map(list, zip(*rows))))

    label = ("l", T.INT64)
    case("trees", ml("TreeEnsembleRegressor", ["x"], ["y"], n_targets=2, base_values=[0.5, -1.0], **tree,
                     **ends("target", [0, 1])), {"x": x}, ["y"])
    for name, classes, labels in (("three", [0, 1, 2], [3, 5, 9]), ("two", [0], [0, 1])):
        case("trees_of_" + name, ml("TreeEnsembleClassifier", ["x"], ["l", "y"], classlabels_int64s=labels,
                                    post_transform="LOGISTIC", **tree, **ends("class", classes)), {"x": x},
             [label, "y"])
    case("linear", ml("LinearRegressor", ["x"], ["y"], coefficients=[1.0, 2.0, 3.0], intercepts=[0.5], targets=1),
         {"x": x}, ["y"])
    maps = h.make_sequence_type_proto(h.make_map_type_proto(T.INT64, h.make_tensor_type_proto(T.FLOAT, None)))
    case("zip_map", [
        ml("Scaler", ["x"], ["s"], offset=[1.0, 2.0, 3.0], scale=[2.0, 0.5, 1.0]),
        ml("LinearClassifier", ["s"], ["l", "p"], coefficients=[float(v) for v in f(6)], intercepts=[0.5, -0.5],
           classlabels_ints=[0, 1], post_transform="SOFTMAX"),
        ml("ZipMap", ["p"], ["y"], classlabels_int64s=[0, 1]),
    ], {"x": x}, [label, ("y", h.make_value_info("y", maps))])
    vectors = [float(v) for v in f(15)]
    for kernel in ("RBF", "POLY"):
        case("machine_" + kernel, ml("SVMClassifier", ["x"], ["l", "y"], kernel_type=kernel,
                                     kernel_params=[0.4, 0.2, 2.0], support_vectors=vectors,
                                     vectors_per_class=[2, 1, 2], coefficients=[float(v) for v in f(10)],
                                     rho=[0.3, 0.1, -0.2], classlabels_ints=[0, 1, 2]), {"x": x}, [label, "y"])
    case("normalizer", ml("Normalizer", ["x"], ["y"], norm="L2"), {"x": x}, ["y"])
    case("imputer", ml("Imputer", ["x"], ["y"], imputed_value_floats=[1.0, 2.0, 3.0],
                       replaced_value_float=float("nan")), {"x": np.where(x > 0.5, F("nan"), x)}, ["y"])
    case("encoder", ml("LabelEncoder", ["x"], ["y"], keys_int64s=[1, 2, 3], values_floats=[1.0, 0.5, 0.25],
                       default_float=-7.0), {"x": np.array([3, 1, 9], I)}, ["y"])
    case("one_hot", ml("OneHotEncoder", ["x"], ["y"], cats_int64s=[1, 4, 6]), {"x": np.array([[4, 6, 9]], I)}, ["y"])


def geometry():
    for mode in ("linear", "nearest", "cubic"):
        for padding in ("zeros", "border", "reflection"):
            case(f"grid_{mode}_{padding}", node("GridSample", ["x", "g"], ["y"], mode=mode, padding_mode=padding),
                 {"x": f(1, 2, 6, 7), "g": RANDOM.uniform(-1.6, 1.6, (1, 4, 5, 2)).astype(F)}, ["y"], opset=20)
    for mode in ("linear", "cubic"):
        case("antialias_" + mode, node("Resize", ["x", "", "", "s"], ["y"], mode=mode, antialias=1),
             {"x": f(1, 2, 6, 8)}, ["y"], {"s": np.array([1, 2, 9, 4], I)})
    case("pool_and_back", [
        node("MaxPool", ["x"], ["p", "i"], kernel_shape=[2, 2], strides=[2, 2]),
        node("MaxUnpool", ["p", "i", "s"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
    ], {"x": f(1, 2, 7, 9)}, ["y"], {"s": np.array([1, 2, 7, 9], I)})
    for reduction in ("none", "add", "mul", "max", "min"):
        case("scatter_" + reduction, node("ScatterND", ["x", "i", "u"], ["y"], reduction=reduction),
             {"x": f(4, 5), "i": RANDOM.integers(0, 4, (6, 1)).astype(I), "u": f(6, 5)}, ["y"])
    case("larger_output", node("ConvTranspose", ["x", "w"], ["y"], strides=[3, 2], output_shape=[17, 9]),
         {"x": f(1, 2, 5, 4)}, ["y"], {"w": f(2, 3, 3, 3)})


def repeated():
    """Loops of more steps than are unrolled."""
    length, batch, inputs, hidden = 9, 2, 5, 4
    for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        weights = {"w": f(2, gates * hidden, inputs) * F(0.4), "r": f(2, gates * hidden, hidden) * F(0.4),
                   "b": f(2, 2 * gates * hidden)}
        outputs = ["y", "h", "c"] if op == "LSTM" else ["y", "h"]
        for name, extra, attributes in (("", [], {}), ("_lengths", ["n"], {}), ("_reset", [], {"linear_before_reset": 1})):
            if name == "_reset" and op != "GRU":
                continue
            case(f"repeated_{op.lower()}{name}",
                 node(op, ["x", "w", "r", "b", *extra], outputs, hidden_size=hidden, direction="bidirectional", **attributes),
                 {"x": f(length, batch, inputs)}, outputs, weights | {"n": np.array([length, 6], I32)})
    k = {"k": np.array(0.5, F)}
    three = lambda *names: [value(name, shape=[3]) for name in names]
    # States are exchanged, a scan reads a state before it is replaced, and axes and directions differ.
    swap = body([node("Add", ["a", "x"], ["s"]), node("Tanh", ["s"], ["b2"]), node("Identity", ["b"], ["a2"]),
                 node("Mul", ["s", "k"], ["y"]), node("Identity", ["a"], ["z"])],
                three("a", "b", "x"), three("a2", "b2", "y", "z"))
    case("repeated_scan", node("Scan", ["a0", "b0", "x0"], ["A", "B", "Y", "Z"], body=swap, num_scan_inputs=1,
                               scan_input_axes=[1], scan_input_directions=[1], scan_output_axes=[1, 0],
                               scan_output_directions=[0, 1]),
         {"a0": f(3), "b0": f(3), "x0": f(3, length)}, ["A", "B", "Y", "Z"], k, shapes={"x0": [3, "n"]})
    number = [value("i", T.INT64, []), value("go", T.BOOL, []), value("a", shape=[2])]
    ends = [value("go2", T.BOOL, []), value("a2", shape=[2]), value("row")]
    go = node("Identity", ["go"], ["go2"])
    counted = body([node("Cast", ["i"], ["n"], to=T.FLOAT), node("Add", ["a", "n"], ["a2"]), go,
                    node("Gather", ["x", "i"], ["row"], axis=0)], number, ends)
    known = {"count": np.array(length, I), "zero": np.array([0], I), "one": np.array([1], I)}
    feeds = {"x": f(length, 5), "a0": f(2)}
    case("repeated_loop", node("Loop", ["count", "", "a0"], ["A", "R"], body=counted), feeds, ["A", "R"], known)
    # A shape follows from the number: unrolled.
    sliced = body([node("Identity", ["a"], ["a2"]), go, node("Unsqueeze", ["i", "zero"], ["first"]),
                   node("Add", ["first", "one"], ["last"]), node("Slice", ["x", "zero", "last", "zero"], ["part"]),
                   node("ReduceSum", ["part", "zero"], ["row"], keepdims=0)], number, ends)
    case("unrolled_loop", node("Loop", ["count", "", "a0"], ["A", "R"], body=sliced), feeds, ["A", "R"], known)
    # The steps share a weight, and a product and a softmax inside.
    mixed = body([node("MatMul", ["s", "w"], ["m"]), node("Add", ["m", "x"], ["t"]), node("Softmax", ["t"], ["s2"]),
                  node("ReduceMax", ["t", "one"], ["y"], keepdims=0)],
                 [value("s", shape=[2, 8]), value("x", shape=[2, 8])], [value("s2", shape=[2, 8]), value("y", shape=[2])])
    case("repeated_softmax", [node("Relu", ["x0"], ["x"]),
                              node("Scan", ["s0", "x"], ["S", "Y"], body=mixed, num_scan_inputs=1)],
         {"x0": f(length, 2, 8), "s0": f(2, 8)}, ["S", "Y"], {"w": f(8, 8), "one": np.array([1], I)})


def spectra():
    window = np.hanning(16).astype(F)
    number = lambda v: np.array(v, I)
    for name, constants, signal in (("real", {"w": window}, f(2, 70, 1)), ("complex", {"w": window}, f(2, 70, 2))):
        case("stft_" + name, node("STFT", ["x", "s", "w"], ["y"], onesided=int(name == "real")), {"x": signal}, ["y"],
             constants | {"s": number(5)})
    case("stft_of_a_window", node("STFT", ["x", "s", "w"], ["y"]), {"x": f(1, 40, 1), "w": window}, ["y"], {"s": number(7)})
    for name, shape, attributes, length in (("forward", (2, 9, 1), {}, None), ("onesided", (2, 10, 1), {"onesided": 1}, None),
                                            ("padded", (2, 9, 2), {}, 12), ("cut", (2, 9, 1), {}, 6),
                                            ("inverse", (2, 9, 2), {"inverse": 1}, None)):
        case("dft_" + name, node("DFT", ["x"] + ([] if length is None else ["n"]), ["y"], **attributes),
             {"x": f(*shape)}, ["y"], {} if length is None else {"n": number(length)})


def main():
    onnxruntime.set_default_logger_severity(3)
    for group in (control_flow, functions, data_dependent, fused, attention, quantised, learned, geometry, repeated, spectra):
        group()
    data = b"".join(struct.pack("<I", len(chunk)) + chunk for chunks in CASES for chunk in chunks)
    packed = zlib.compress(data, 9)
    with open(sys.argv[1] if len(sys.argv) > 1 else "kinds.bin.z", "wb") as file:
        file.write(packed)
    print(f"{len(CASES)} cases, {len(packed)} bytes")


if __name__ == "__main__":
    main()
