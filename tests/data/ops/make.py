#!/usr/bin/env python3
"""Writes cases.txt and expected.bin next to this file: PyTorch's results for the op suite.

    python3 tests/data/ops/make.py        # torch and numpy

Each line of cases.txt is a case: category, operation, inputs, range of their values, arguments, and whether it is
differentiated. An input is `3x4` (floats), `s` (one float without axes), `i5<9` (five integers below 9) or `u8:3x4`
(elements stored in a type). An operation `add>u8` stores its result in a type. Values of an input are a hash of its
number in the case and of the element's index (unit.py), which crates/parity/src/ops computes too. expected.bin has, case by
case, the result and then the gradient of each float input, as little-endian f32. The gradients are those of the sum of
the result's elements, weighted by `weights`.
"""

import pathlib

import numpy as np
import torch
import torch.nn.functional as F

from unit import unit


def weights(n):
    return 2 * unit(999, n) - 1


def shape_of(text):
    return [] if text == "s" else [int(n) for n in text.split("x")]


CASES = []


def case(category, op, inputs, low=-2.0, high=2.0, args=(), grad=True):
    CASES.append((category, op, inputs, low, high, tuple(args), grad))


def each(category, ops, shapes, low=-2.0, high=2.0, args=(), grad=True):
    for op in ops:
        for inputs in shapes:
            case(category, op, inputs, low, high, args, grad)


def listed(x):
    return [int(v) for v in x]


def stored(x, kind):
    """Values after storing them in a type; integers are converted by way of 32 bits."""
    if kind in ("f32", "f16", "bf16"):
        to = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[kind]
        return x.float().to(to).double()
    if kind == "bool":
        return (x != 0).long()
    to = {"i32": torch.int32, "i8": torch.int8, "u8": torch.uint8}[kind]
    return x.trunc().long().to(to).long() if x.is_floating_point() else x.to(to).long()


OPS = {
    # Elements.
    "neg": lambda a, x: -x,
    "exp": lambda a, x: x.exp(),
    "ln": lambda a, x: x.log(),
    "sqrt": lambda a, x: x.sqrt(),
    "rsqrt": lambda a, x: x.rsqrt(),
    "recip": lambda a, x: x.reciprocal(),
    "square": lambda a, x: x.square(),
    "sin": lambda a, x: x.sin(),
    "cos": lambda a, x: x.cos(),
    "tan": lambda a, x: x.tan(),
    "abs": lambda a, x: x.abs(),
    "sign": lambda a, x: x.sign(),
    "floor": lambda a, x: x.floor(),
    "ceil": lambda a, x: x.ceil(),
    "trunc": lambda a, x: x.trunc(),
    "round": lambda a, x: x.round(),
    "erf": lambda a, x: x.erf(),
    "powi": lambda a, x: x ** int(a[0]),
    "plus": lambda a, x: x + a[0],
    "times": lambda a, x: x * a[0],
    "clamp": lambda a, x: x.clamp(a[0], a[1]),
    # Activations.
    "sigmoid": lambda a, x: x.sigmoid(),
    "tanh": lambda a, x: x.tanh(),
    "relu": lambda a, x: x.relu(),
    "relu6": lambda a, x: F.relu6(x),
    "leaky_relu": lambda a, x: F.leaky_relu(x, a[0]),
    "elu": lambda a, x: F.elu(x, a[0]),
    "softplus": lambda a, x: F.softplus(x),
    "silu": lambda a, x: F.silu(x),
    "mish": lambda a, x: F.mish(x),
    "hardswish": lambda a, x: F.hardswish(x),
    "gelu": lambda a, x: F.gelu(x),
    "gelu_tanh": lambda a, x: F.gelu(x, approximate="tanh"),
    # Two operands.
    "add": lambda a, x, y: x + y,
    "sub": lambda a, x, y: x - y,
    "mul": lambda a, x, y: x * y,
    "div": lambda a, x, y: x / y,
    "maximum": lambda a, x, y: torch.maximum(x, y),
    "minimum": lambda a, x, y: torch.minimum(x, y),
    "remainder": lambda a, x, y: torch.remainder(x, y),
    "less": lambda a, x, y: (x < y).float(),
    "less_equal": lambda a, x, y: (x <= y).float(),
    "equal": lambda a, x, y: (x == y).float(),
    "where": lambda a, c, x, y: torch.where(c > 0, x, y),
    "masked_fill": lambda a, c, x: x.masked_fill(c > 0, a[0]),
    "lerp": lambda a, x, y, w: torch.lerp(x, y, w),
    # Integers.
    "int_add": lambda a, x, y: x + y,
    "int_sub": lambda a, x, y: x - y,
    "int_mul": lambda a, x, y: x * y,
    "int_max": lambda a, x, y: torch.maximum(x, y),
    "int_and": lambda a, x, y: x & y,
    "int_or": lambda a, x, y: x | y,
    "int_xor": lambda a, x, y: x ^ y,
    "int_shl": lambda a, x: x << int(a[0]),
    "int_shr": lambda a, x: (x - 1000) >> int(a[0]),
    "int_le": lambda a, x, y: (x <= y).float(),
    "int_sum": lambda a, x: x.sum(0, keepdim=True),
    "int_amax": lambda a, x: x.amax(0, keepdim=True),
    # Types.
    "keep": lambda a, x: x,
    "select": lambda a, c, x, y: torch.where(c != 0, x, y),
    "cast_f16": lambda a, x: x.half().float(),
    "cast_bf16": lambda a, x: x.bfloat16().float(),
    "cast_i32": lambda a, x: x.int(),
    # Reductions: a[0] is a mask of axes.
    "sum": lambda a, x: x.sum(axes(a, x), keepdim=True),
    "mean": lambda a, x: x.mean(axes(a, x), keepdim=True),
    "amax": lambda a, x: x.amax(axes(a, x), keepdim=True),
    "amin": lambda a, x: x.amin(axes(a, x), keepdim=True),
    "var": lambda a, x: x.var(axes(a, x), keepdim=True, correction=int(a[1])),
    "total": lambda a, x: x.sum().reshape(1),
    "average": lambda a, x: x.mean().reshape(1),
    "softmax": lambda a, x: x.softmax(int(a[0])),
    "log_softmax": lambda a, x: x.log_softmax(int(a[0])),
    "log_sum_exp": lambda a, x: x.logsumexp(int(a[0]), keepdim=True),
    # Shapes.
    "reshape": lambda a, x: x.reshape(listed(a)),
    "flatten": lambda a, x: x.flatten(int(a[0])),
    "permute": lambda a, x: x.permute(listed(a)),
    "transpose": lambda a, x: x.transpose(int(a[0]), int(a[1])),
    "unsqueeze": lambda a, x: x.unsqueeze(int(a[0])),
    "squeeze": lambda a, x: x.squeeze(int(a[0])),
    "expand": lambda a, x: x.expand(listed(a)),
    "slice": lambda a, x: x.narrow(int(a[0]), int(a[1]), int(a[2])),
    "every": lambda a, x: x.index_select(int(a[0]), torch.arange(0, x.shape[int(a[0])], int(a[1]))),
    "pad": lambda a, x: padded(x, int(a[0]), int(a[1]), int(a[2]), a[3]),
    "flip": lambda a, x: x.flip(int(a[0])),
    "roll": lambda a, x: x.roll(int(a[1]), int(a[0])),
    "repeat": lambda a, x: x.repeat(listed(a)),
    "concat": lambda a, *x: torch.cat(x, int(a[0])),
    "stack": lambda a, *x: torch.stack(x, int(a[0])),
    "tril": lambda a, x: x.tril(int(a[0])),
    "triu": lambda a, x: x.triu(int(a[0])),
    "window": lambda a, x: x.unfold(int(a[0]), int(a[1]), int(a[2])),
    "arange": lambda a: torch.arange(int(a[2])) * a[1] + a[0],
    "full": lambda a: torch.full(listed(a[1:]), a[0]),
    "lower_triangle": lambda a: torch.ones(int(a[0]), int(a[1])).tril(int(a[2])),
    # Products.
    "matmul": lambda a, x, y: x.double() @ y.double(),
    "linear": lambda a, x, w, b: F.linear(x, w, b),
    "attention": lambda a, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=bool(a[0])),
    # Windows: stride, padding, dilation, groups.
    "conv": lambda a, x, w: conv(x)(x, w, None, *listed(a)),
    "conv_bias": lambda a, x, w, b: conv(x)(x, w, b, *listed(a)),
    "conv_transpose": lambda a, x, w: conv_transpose(x, w, *listed(a)),
    "max_pool": lambda a, x: pool(x, "max")(x, int(a[0]), int(a[1]), int(a[2]), int(a[3])),
    "avg_pool": lambda a, x: pool(x, "avg")(x, int(a[0]), int(a[1]), int(a[2]), False, bool(a[3])),
    "global_avg_pool": lambda a, x: x.mean(tuple(range(2, x.dim())), keepdim=True),
    "nearest": lambda a, x: F.interpolate(x, scale_factor=int(a[0]), mode="nearest"),
    "linear_size": lambda a, x: F.interpolate(
        x, size=listed(a[1:]), mode=["linear", "bilinear"][x.dim() - 3], align_corners=bool(a[0])
    ),
    # Gather and scatter.
    "gather": lambda a, x, i: x[i],
    "take": lambda a, x, i: x.index_select(int(a[0]), i),
    "gather_2": lambda a, x, i, j: x[i, j],
    "scatter_add": lambda a, x, i: torch.zeros(int(a[0]), *x.shape[1:]).index_add(0, i, x.double()),
    "one_hot": lambda a, i: F.one_hot(i, int(a[0])).float(),
    "embedding": lambda a, w, i: F.embedding(i, w),
    # Order.
    "sort": lambda a, x: x.sort(int(a[0]), descending=True)[0],
    "argsort": lambda a, x: x.sort(int(a[0]), descending=True)[1],
    "top_k": lambda a, x: x.topk(int(a[1]), int(a[0]))[0],
    "argmax": lambda a, x: x.argmax(int(a[0]), keepdim=True),
    "cumsum": lambda a, x: x.cumsum(int(a[0])),
    # Norms.
    "batch_norm": lambda a, x, w, b: F.batch_norm(x, None, None, w, b, True, 0.1, a[0]),
    "batch_norm_by": lambda a, x, m, v, w, b: (x - ch(m, x)) / (ch(v.square(), x) + a[0]).sqrt() * ch(w, x) + ch(b, x),
    "group_norm": lambda a, x, w, b: F.group_norm(x, int(a[1]), w, b, a[0]),
    "layer_norm": lambda a, x, w, b: F.layer_norm(x, x.shape[-1:], w, b, a[0]),
    "layer_norm_2": lambda a, x, w, b: F.layer_norm(x, x.shape[-2:], w, b, a[0]),
    "rms_norm": lambda a, x, w: F.rms_norm(x, x.shape[-1:], w, a[0]),
    # Losses.
    "mse": lambda a, x, y: F.mse_loss(x, y).reshape(1),
    "l1": lambda a, x, y: F.l1_loss(x, y).reshape(1),
    "huber": lambda a, x, y: F.huber_loss(x, y, delta=a[0]).reshape(1),
    "cross_entropy": lambda a, x, i: F.cross_entropy(x, i, label_smoothing=a[0]).reshape(1),
    "nll": lambda a, x, i: F.nll_loss(x.log_softmax(1), i).reshape(1),
    "bce_with_logits": lambda a, x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()).reshape(1),
    "kl_div": lambda a, x, y: F.kl_div(
        x.log_softmax(-1), y.softmax(-1), reduction="batchmean"
    ).reshape(1) * (x.shape[0] / x[..., 0].numel()),
}


def axes(a, x):
    return [i for i in range(x.dim()) if int(a[0]) >> i & 1]


def padded(x, axis, before, after, value):
    by = [0, 0] * (x.dim() - 1 - axis) + [before, after]
    return F.pad(x, by, value=value)


def ch(v, x):
    return v.reshape(-1, *[1] * (x.dim() - 2))


def conv(x):
    return [F.conv1d, F.conv2d][x.dim() - 3]


def conv_transpose(x, w, stride, padding, dilation, groups, extra):
    of = [F.conv_transpose1d, F.conv_transpose2d][x.dim() - 3]
    return of(x, w, None, stride, padding, extra, groups, dilation)


def pool(x, kind):
    return getattr(F, f"{kind}_pool{x.dim() - 2}d")


def cases():
    shapes = [["3x5"], ["2x3x4"], ["7"], ["s"], ["1x1x3x2"]]
    each("unary", ["neg", "exp", "square", "sin", "cos", "abs", "sign", "erf"], shapes)
    each("unary", ["ln", "sqrt", "rsqrt", "recip"], shapes, 0.2, 3.0)
    each("unary", ["tan"], shapes, -1.2, 1.2)
    each("unary", ["floor", "ceil", "trunc", "round"], shapes, -5.0, 5.0)
    for power in [0, 1, 2, 3, 5, -1, -2]:
        each("unary", ["powi"], [["3x5"]], 0.5, 2.0, [power])
    each("unary", ["plus", "times"], [["3x5"], ["s"]], args=[-1.5])
    for low, high in [(-1, 1), (0, 0.5), (-9, 9)]:
        each("unary", ["clamp"], [["3x5"]], args=[low, high])
    each("unary", ["exp", "sin", "cos"], [["300"]], -60.0, 60.0, grad=False)
    names = "sigmoid tanh relu relu6 softplus silu mish hardswish gelu gelu_tanh".split()
    each("activation", names, [["3x5"], ["2x3x4"], ["7"], ["s"]], -4.0, 4.0)
    for slope in [0.01, 0.3, 1.0]:
        each("activation", ["leaky_relu", "elu"], [["3x5"], ["7"]], args=[slope])
    pairs = [["3x5", "3x5"], ["3x5", "5"], ["3x1", "1x5"], ["2x3x4", "3x1"], ["s", "3x2"], ["4", "2x1x4"]]
    each("binary", ["add", "sub", "mul", "maximum", "minimum"], pairs)
    each("binary", ["div"], pairs, 0.5, 3.0)
    each("binary", ["remainder"], pairs[:2], 0.5, 3.0, grad=False)
    each("compare", ["less", "less_equal", "equal"], pairs, grad=False)
    threes = [["3x5", "3x5", "3x5"], ["3x1", "5", "3x5"], ["5", "3x5", "s"]]
    each("where", ["where", "lerp"], threes)
    for value in [0.0, -1e4]:
        each("where", ["masked_fill"], [["3x5", "3x5"], ["5", "3x5"]], args=[value])
    ints = [["i12<50", "i12<50"]]
    each("integer", [f"int_{op}" for op in "add sub mul max and or xor le".split()], ints, grad=False)
    each("integer", ["int_sum", "int_amax"], [["i12<50"], ["i1<50"]], grad=False)
    for by in [0, 1, 5]:
        each("integer", ["int_shl", "int_shr"], [["i12<2000"]], args=[by], grad=False)
    narrow_types()
    each("cast", ["cast_f16", "cast_bf16", "cast_i32"], [["3x5"], ["7"]], -300.0, 300.0, grad=False)
    for shape, masks in [("7", [1]), ("3x5", [1, 2, 3]), ("2x3x4", [1, 2, 4, 3, 5, 7])]:
        for mask in masks:
            each("reduce", ["sum", "mean", "amax", "amin"], [[shape]], args=[mask])
            each("reduce", ["var"], [[shape]], args=[mask, 0])
            if mask != 2:
                each("reduce", ["var"], [[shape]], args=[mask, 1])
    each("reduce", ["total", "average"], [["3x5"], ["2x3x4"], ["s"]])
    each("reduce", ["sum", "amax"], [["3x300"]], args=[2])
    each("reduce", ["sum", "amax"], [["300x3"]], args=[1])
    for shape, axis in [("3x5", 0), ("3x5", 1), ("2x3x4", 1), ("7", 0)]:
        each("softmax", ["softmax", "log_softmax", "log_sum_exp"], [[shape]], -4.0, 4.0, [axis])
    for to in [[15], [5, 3], [1, 3, 5], [3, 5, 1], [3, 1, 5]]:
        each("shape", ["reshape"], [["3x5"]], args=to)
    for first in [0, 1, 2]:
        each("shape", ["flatten"], [["2x3x4"]], args=[first])
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0], [2, 0, 1], [0, 2, 1]]:
        each("shape", ["permute"], [["2x3x4"]], args=order)
    for a, b in [(0, 1), (1, 2), (0, 2)]:
        each("shape", ["transpose"], [["2x3x4"]], args=[a, b])
    for axis in [0, 1, 2]:
        each("shape", ["unsqueeze"], [["3x5"]], args=[axis])
        each("shape", ["flip"], [["2x3x4"]], args=[axis])
        each("shape", ["concat"], [["2x3x4", "2x3x4"], ["2x3x4"]], args=[axis])
        each("shape", ["stack"], [["3x5", "3x5", "3x5"]], args=[axis])
        for by in [1, -1]:
            each("shape", ["roll"], [["2x3x4"]], args=[axis, by])
    each("shape", ["concat"], [["2x1", "2x3", "2x2"]], args=[1])
    each("shape", ["squeeze"], [["3x1x5"]], args=[1])
    for shape, to in [("3x1", [3, 4]), ("1x5", [3, 5]), ("5", [2, 3, 5]), ("s", [2, 2]), ("1x3x1", [2, 3, 4])]:
        each("shape", ["expand"], [[shape]], args=to)
    for axis, start, count in [(0, 0, 1), (0, 1, 2), (1, 2, 3), (1, 0, 5), (1, 4, 1)]:
        each("shape", ["slice"], [["3x5"]], args=[axis, start, count])
    for axis, step in [(0, 2), (1, 2), (1, 3), (1, 1)]:
        each("shape", ["every"], [["3x5"]], args=[axis, step])
    for axis, before, after in [(0, 1, 0), (1, 0, 2), (1, 2, 1), (0, 0, 0)]:
        for value in [0.0, 1.5]:
            each("shape", ["pad"], [["3x5"]], args=[axis, before, after, value])
    for times in [[1, 1], [2, 1], [1, 3], [2, 2]]:
        each("shape", ["repeat"], [["3x2"]], args=times)
    for above in [-1, 0, 1]:
        each("shape", ["tril", "triu"], [["4x5"], ["2x3x3"]], args=[above])
    for axis, size, step in [(0, 2, 1), (1, 3, 2), (1, 1, 1), (1, 5, 1)]:
        each("shape", ["window"], [["4x5"]], args=[axis, size, step])
    for args in [[0, 1, 5], [2, -0.5, 4], [0, 0, 3]]:
        each("creation", ["arange"], [[]], args=args, grad=False)
    for args in [[1.5, 2, 3], [0, 4], [-2, 1, 1, 1]]:
        each("creation", ["full"], [[]], args=args, grad=False)
    for args in [[3, 3, 0], [3, 5, 1], [4, 2, -1]]:
        each("creation", ["lower_triangle"], [[]], args=args, grad=False)
    products = ["3x4 4x5", "1x4 4x1", "2x3x4 2x4x5", "2x3x4 4x5", "3x4 2x4x5", "2x1x3x4 5x4x2", "1x1 1x1", "20x33 33x17"]
    each("product", ["matmul"], [shapes.split() for shapes in products])
    each("product", ["linear"], [["3x4", "5x4", "5"], ["2x3x4", "5x4", "5"], ["1x4", "1x4", "1"]])
    for causal in [0, 1]:
        each("product", ["attention"], [["3x4", "3x4", "3x4"], ["2x2x3x4", "2x2x3x4", "2x2x3x6"]], args=[causal])
    plain = [1, 0, 1, 1]
    for shapes in ["1x1x5 1x1x3", "2x3x7 4x3x3", "1x1x5x5 1x1x3x3", "2x3x5x6 4x3x3x2", "1x2x4x4 3x2x1x1"]:
        each("convolution", ["conv"], [shapes.split()], args=plain)
    for args in [[2, 0, 1, 1], [1, 1, 1, 1], [2, 1, 1, 1], [1, 0, 2, 1], [1, 2, 2, 1], [3, 2, 1, 1]]:
        each("convolution", ["conv"], [["2x4x9", "6x4x3"], ["2x2x7x8", "3x2x3x3"]], args=args)
    for groups, shapes in [(2, "1x4x6 6x2x3"), (4, "2x4x5x5 4x1x3x3"), (2, "1x4x5x5 2x2x2x2")]:
        each("convolution", ["conv"], [shapes.split()], args=[1, 0, 1, groups])
    each("convolution", ["conv_bias"], [["2x3x7", "4x3x3", "4"], ["1x2x5x5", "3x2x3x3", "3"]], args=[1, 1, 1, 1])
    for args in [[1, 0, 1, 1, 0], [2, 0, 1, 1, 0], [2, 1, 1, 1, 1], [1, 1, 2, 1, 0], [3, 1, 1, 1, 0]]:
        each("convolution", ["conv_transpose"], [["2x3x4", "3x2x3"], ["1x2x4x3", "2x3x3x3"]], args=args)
    each("convolution", ["conv_transpose"], [["1x4x4", "4x3x3"]], args=[2, 0, 1, 2, 0])
    for size, stride, padding in [(2, 2, 0), (3, 1, 0), (3, 2, 1), (2, 1, 1), (1, 2, 0)]:
        each("pool", ["max_pool"], [["2x3x8"], ["1x2x6x5"]], args=[size, stride, padding, 1])
        for counted in [0, 1]:
            each("pool", ["avg_pool"], [["2x3x8"], ["1x2x6x5"]], args=[size, stride, padding, counted])
    each("pool", ["max_pool"], [["1x2x7x7"]], args=[2, 1, 0, 2])
    each("pool", ["global_avg_pool"], [["2x3x4x5"], ["2x3x4"]])
    for factor in [1, 2, 3]:
        each("interpolation", ["nearest"], [["1x2x3"], ["1x2x3x2"]], args=[factor])
    for corners in [0, 1]:
        for extent in [2, 4, 7]:
            each("interpolation", ["linear_size"], [["2x1x4"]], args=[corners, extent])
            each("interpolation", ["linear_size"], [["1x2x4x3"]], args=[corners, extent, 5])
    for inputs in [["5x3", "i4<5"], ["5", "i4<5"], ["4x2x3", "i6<4"]]:
        each("rows", ["gather"], [inputs])
    for axis, inputs in [(0, ["5x3", "i4<5"]), (1, ["3x5", "i4<5"]), (2, ["2x3x4", "i3<4"])]:
        each("rows", ["take"], [inputs], args=[axis])
    each("rows", ["gather_2"], [["4x3x2", "i5<4", "i5<3"], ["4x3", "i5<4", "i5<3"]])
    for rows, inputs in [(4, ["6x2", "i6<4"]), (7, ["3", "i3<7"]), (3, ["5x2x2", "i5<3"])]:
        each("rows", ["scatter_add"], [inputs], args=[rows])
    each("rows", ["one_hot"], [["i5<4"], ["i1<4"]], args=[4], grad=False)
    each("rows", ["embedding"], [["6x3", "i4<6"], ["3x2", "i9<3"]])
    for shape, axis in [("7", 0), ("3x5", 1), ("3x5", 0), ("2x3x4", 1)]:
        each("order", ["sort"], [[shape]], args=[axis])
        each("order", ["argsort", "argmax"], [[shape]], args=[axis], grad=False)
        for count in [1, 2]:
            each("order", ["top_k"], [[shape]], args=[axis, count])
        each("scan", ["cumsum"], [[shape]], args=[axis])
    each("scan", ["cumsum"], [["2x70"], ["200"]], args=[0])
    each("scan", ["cumsum"], [["2x70"]], args=[1])
    each("norm", ["batch_norm"], [["4x3", "3", "3"], ["2x3x4", "3", "3"], ["2x3x4x2", "3", "3"]], args=[1e-3])
    each("norm", ["batch_norm_by"], [["2x3x4", "3", "3", "3", "3"]], args=[1e-3])
    for groups in [1, 2, 4]:
        each("norm", ["group_norm"], [["2x4x3", "4", "4"], ["2x4x2x3", "4", "4"]], args=[1e-3, groups])
    each("norm", ["layer_norm"], [["3x5", "5", "5"], ["2x3x4", "4", "4"]], args=[1e-3])
    each("norm", ["layer_norm_2"], [["2x3x4", "3x4", "3x4"]], args=[1e-3])
    each("norm", ["rms_norm"], [["3x5", "5"], ["2x3x4", "4"]], args=[1e-3])
    each("loss", ["mse", "l1", "bce_with_logits", "kl_div"], [["3x5", "3x5"], ["2x3x4", "2x3x4"]])
    for delta in [0.5, 1.0]:
        each("loss", ["huber"], [["3x5", "3x5"]], args=[delta])
    for smoothing in [0.0, 0.1]:
        each("loss", ["cross_entropy"], [["4x5", "i4<5"], ["1x3", "i1<3"]], args=[smoothing])
    each("loss", ["nll"], [["4x5", "i4<5"]])


def narrow_types():
    """Cases for every conversion, and for every primitive on elements stored in narrower types than they are computed in."""
    ranges = {"f32": (-300, 300), "f16": (-3, 3), "bf16": (-3, 3), "i32": (-999, 999)}
    ranges |= {"i8": (-128, 128), "u8": (0, 256), "bool": (0, 2)}
    for kind in ranges:
        for to in ranges:
            for shape in ["7", "3x101"]:
                case("cast", f"keep>{to}", [f"{kind}:{shape}"], *ranges[kind], grad=False)
    for kind in ["f16", "bf16", "i8", "u8", "bool"]:
        whole, (low, high) = kind in ("i8", "u8", "bool"), ranges[kind]

        def of(op, *shapes, args=(), low=low, high=high):
            inputs = [text if ":" in text or "<" in text else f"{kind}:{text}" for text in shapes]
            case(f"type-{kind}", op, inputs, low, high, args, False)

        for op in ["exp", "sin", "neg", "floor", f"neg>{kind}"]:
            of(op, "7", low=max(low, -4), high=min(high, 4))
        for op in ["sqrt", "ln", "recip"]:
            of(op, "3x5", low=1, high=min(high, 5))
        for op in ["add", "sub", "mul", "maximum", "less_equal"]:
            of(op, "3x5", "3x5")
            of(f"{op}>{kind}", "3x1", "5")
            of(f"{op}>bool", "301", "301")
        for op in ["and", "or", "xor"] if whole else []:
            of(f"int_{op}", "3x5", "3x5")
            of(f"int_{op}>{kind}", "3x5", "5")
        if whole:
            of(f"int_shl>{kind}", "7", args=[3])
            of("add", "3x5", "i8:5")
            of("mul>u8", "u8:3x5", "5")
        of("select", "bool:3x5", "3x5", "3x5")
        of(f"select>{kind}", "bool:5", "3x1", "3x5")
        of("select", "3x5", "f32:3x5", "f32:5")
        for mask in [1, 2, 3]:
            of("sum", "3x5", args=[mask])
            of(f"amax>{kind}", "3x5", args=[mask])
        of("sum", "3x300", args=[2])
        of(f"sum>{kind}", "300x3", args=[1])
        of("reshape", "3x5", args=[5, 3])
        of("permute", "2x3x4", args=[2, 0, 1])
        of(f"permute>{kind}", "2x3x4", args=[1, 0, 2])
        of("expand", "3x1", args=[2, 3, 5])
        of("slice", "3x5", args=[1, 2, 3])
        of("flip", "2x3x4", args=[1])
        of("window", "4x5", args=[1, 3, 2])
        of("every", "3x5", args=[1, 2])
        of("pad", "3x5", args=[1, 2, 1, 0])
        of(f"pad>{kind}", "3x5", args=[0, 1, 0, 0])
        of("concat", "3x2", "3x3", args=[1])
        of("matmul", "3x4", "4x5")
        of("matmul", "f32:2x33", "33x3")
        of("gather", "5x3", "i4<5")
        of(f"gather>{kind}", "5x7", "i9<5")
        of("gather_2", "4x3x2", "i5<4", "i5<3")
        of("scatter_add", "6x2", "i6<4", args=[4])
        if kind != "bool":
            of("top_k", "3x5", args=[1, 2])
    case("type-u8", "gather", ["f32:5x3", "u8:4"], 0, 5, grad=False)
    case("type-i8", "gather", ["i8:5x3", "i8:4"], 0, 5, grad=False)


def main():
    here = pathlib.Path(__file__).parent
    cases()
    lines, expected = [], []
    for category, op, inputs, low, high, args, grad in CASES:
        tensors, floats = [], []
        for i, text in enumerate(inputs):
            if ":" in text:
                kind, shape = text.split(":")
                shape = shape_of(shape)
                values = low + unit(i + 1, int(np.prod(shape, dtype=int))) * (high - low)
                values = torch.tensor(values.astype(np.float32)).double().reshape(shape)
                tensors.append(stored(values, kind))
            elif text.startswith("i"):
                count, below = map(int, text[1:].split("<"))
                values = (unit(i + 1, count) * below).astype(np.int64)
                tensors.append(torch.tensor(values))
            else:
                shape = shape_of(text)
                values = low + unit(i + 1, int(np.prod(shape, dtype=int))) * (high - low)
                tensor = torch.tensor(values.astype(np.float32)).double().reshape(shape)
                tensors.append(tensor.requires_grad_(grad))
                floats.append(tensor)
        torch.set_default_dtype(torch.float64)
        name, _, kept = op.partition(">")
        result = OPS[name](args, *tensors)
        result = stored(result, kept) if kept else result
        values = [result.detach().double().flatten()]
        if grad:
            weight = torch.tensor(weights(result.numel()).astype(np.float32)).double()
            total = (result.flatten() * weight).sum()
            gradients = torch.autograd.grad(total, floats, allow_unused=True)
            for tensor, of in zip(floats, gradients):
                values.append(torch.zeros_like(tensor).flatten() if of is None else of.flatten())
        expected.append(torch.cat(values).numpy().astype("<f4"))
        numbers = ",".join(f"{v:g}" for v in args) or "-"
        lines.append(
            f"{category} {op} {','.join(inputs) or '-'} {low:g}:{high:g} {numbers} {'grad' if grad else 'value'}"
        )
    (here / "cases.txt").write_text("\n".join(lines) + "\n")
    np.concatenate(expected).tofile(here / "expected.bin")
    print(len(lines), "cases in", len({line.split()[0] for line in lines}), "categories")


main()
