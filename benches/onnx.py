#!/usr/bin/env python3
"""Compares `orinctl run` with another engine on ONNX files, in turn, on the same number of threads.

    onnx.py ORINCTL FOLDER [NAME...]

Exports missing networks into FOLDER, then runs each ROUNDS (3) times on both engines. Prints a table: median times, the
ratio of the times of one round (above 1: orind is faster), and the largest difference of a result divided by its
largest value. ORINCTL is a release build. Needs numpy, torch, torchvision, transformers, onnx, onnxscript and
onnxruntime from PyPI. THREADS is 2. Weights are random; the detector, the U-Net block and the VAE decoder are built
from their published layers.

PEER is `onnxruntime` (default), `tinygrad` or `openblas`. tinygrad (from PyPI, with clang) replays the ten graphs of
GRAPHS by its TinyJit unless NAMEs are given; openblas is numpy's matrix product of 1024 x 1024 x 1024.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
import warnings

# Without this, `import onnx` finds this file.
sys.path.pop(0)
THREADS = int(os.environ.get("THREADS", 2))
# Libraries read these when they are imported.
os.environ.update(OPENBLAS_NUM_THREADS=str(THREADS), NUM_CPU_THREADS=str(THREADS))

import numpy as np
import torch
from torch import nn
from torch.nn import functional as f

warnings.simplefilter("ignore")
orinctl, folder = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2])
ROUNDS, PEER = int(os.environ.get("ROUNDS", 3)), os.environ.get("PEER", "onnxruntime")


class First(nn.Module):
    """First output of a model that is called with fixed arguments."""

    def __init__(self, model, **arguments):
        super().__init__()
        self.model, self.arguments = model, arguments

    def forward(self, x):
        return self.model(x, **self.arguments)[0]


def conv(i, o, k, s=1):
    return nn.Sequential(nn.Conv2d(i, o, k, s, k // 2, bias=False), nn.BatchNorm2d(o), nn.SiLU())


class Bottleneck(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a, self.b = conv(c, c, 3), conv(c, c, 3)

    def forward(self, x):
        return x + self.b(self.a(x))


class C2f(nn.Module):
    def __init__(self, i, o, n):
        super().__init__()
        self.a, self.b = conv(i, o, 1), conv((2 + n) * (o // 2), o, 1)
        self.m = nn.ModuleList(Bottleneck(o // 2) for _ in range(n))

    def forward(self, x):
        y = list(self.a(x).chunk(2, 1))
        for m in self.m:
            y.append(m(y[-1]))
        return self.b(torch.cat(y, 1))


class Sppf(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a, self.b, self.m = conv(c, c // 2, 1), conv(c * 2, c, 1), nn.MaxPool2d(5, 1, 2)

    def forward(self, x):
        x = self.a(x)
        y = self.m(x)
        z = self.m(y)
        return self.b(torch.cat([x, y, z, self.m(z)], 1))


class Yolo(nn.Module):
    """YOLOv8n up to the distances and classes of each cell."""

    def __init__(self):
        super().__init__()
        self.l = nn.ModuleList([
            conv(3, 16, 3, 2), conv(16, 32, 3, 2), C2f(32, 32, 1), conv(32, 64, 3, 2), C2f(64, 64, 2),
            conv(64, 128, 3, 2), C2f(128, 128, 2), conv(128, 256, 3, 2), C2f(256, 256, 1), Sppf(256),
        ])
        self.u = nn.Upsample(scale_factor=2)
        self.h1, self.h2, self.h3, self.h4 = C2f(384, 128, 1), C2f(192, 64, 1), C2f(192, 128, 1), C2f(384, 256, 1)
        self.d1, self.d2 = conv(64, 64, 3, 2), conv(128, 128, 3, 2)
        self.o = nn.ModuleList(nn.Conv2d(c, 144, 1) for c in (64, 128, 256))

    def forward(self, x):
        kept = []
        for i, layer in enumerate(self.l):
            x = layer(x)
            if i in (4, 6, 9):
                kept.append(x)
        p3, p4, p5 = kept
        a = self.h1(torch.cat([self.u(p5), p4], 1))
        b = self.h2(torch.cat([self.u(a), p3], 1))
        c = self.h3(torch.cat([self.d1(b), a], 1))
        d = self.h4(torch.cat([self.d2(c), p5], 1))
        y = torch.cat([o(t).flatten(2) for o, t in zip(self.o, (b, c, d))], 2)
        box, classes = y.split((64, 80), 1)
        n, _, cells = box.shape
        distances = (box.view(n, 4, 16, cells).softmax(2) * torch.arange(16).view(1, 1, 16, 1)).sum(2)
        return torch.cat([distances, classes.sigmoid()], 1)


class Residual(nn.Module):
    """Residual block: twice group norm, SiLU and convolution; in a U-Net with a time embedding between them."""

    def __init__(self, i, o, time=None):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(32, i, eps=1e-6), nn.Conv2d(i, o, 3, 1, 1)
        self.n2, self.c2 = nn.GroupNorm(32, o, eps=1e-6), nn.Conv2d(o, o, 3, 1, 1)
        self.t = nn.Linear(time, o) if time else None
        self.s = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, t=None):
        h = self.c1(f.silu(self.n1(x)))
        if self.t is not None:
            h = h + self.t(f.silu(t))[:, :, None, None]
        return self.s(x) + self.c2(f.silu(self.n2(h)))


class Transformer(nn.Module):
    def __init__(self, c, d):
        super().__init__()
        self.n, self.pi, self.po = nn.GroupNorm(32, c), nn.Conv2d(c, c, 1), nn.Conv2d(c, c, 1)
        self.l1, self.l2 = nn.LayerNorm(c), nn.LayerNorm(c)
        self.q, self.k, self.v = (nn.Linear(n, c, bias=False) for n in (c, d, d))
        self.o, self.g, self.f = nn.Linear(c, c), nn.Linear(c, 8 * c), nn.Linear(4 * c, c)

    def forward(self, x, e):
        b, c, h, w = x.shape
        y = self.pi(self.n(x)).flatten(2).transpose(1, 2)
        z = self.l1(y)
        q, k, v = (t.view(b, -1, 8, c // 8).transpose(1, 2) for t in (self.q(z), self.k(e), self.v(e)))
        a = f.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, h * w, c)
        y = y + self.o(a)
        u, g = self.g(self.l2(y)).chunk(2, -1)
        y = y + self.f(u * f.gelu(g))
        return x + self.po(y.transpose(1, 2).view(b, c, h, w))


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.r, self.a = Residual(320, 320, 1280), Transformer(320, 768)

    def forward(self, x, t, e):
        return self.a(self.r(x, t), e)


class Middle(nn.Module):
    """Attention of every pixel to every other."""

    def __init__(self, c):
        super().__init__()
        self.n = nn.GroupNorm(32, c, eps=1e-6)
        self.q, self.k, self.v, self.o = (nn.Conv2d(c, c, 1) for _ in range(4))

    def forward(self, x):
        b, c, h, w = x.shape
        y = self.n(x)
        q, k, v = (t(y).flatten(2).transpose(1, 2)[:, None] for t in (self.q, self.k, self.v))
        a = f.scaled_dot_product_attention(q, k, v)[:, 0].transpose(1, 2).reshape(b, c, h, w)
        return x + self.o(a)


class Decoder(nn.Module):
    """VAE decoder of Stable Diffusion: from 4 channels of latents to 3 of an image with eight times the resolution."""

    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(4, 4, 1), nn.Conv2d(4, 512, 3, 1, 1), Residual(512, 512), Middle(512), Residual(512, 512)]
        for level, (i, o) in enumerate([(512, 512), (512, 512), (512, 256), (256, 128)]):
            layers += [Residual(i, o), Residual(o, o), Residual(o, o)]
            if level < 3:
                layers += [nn.Upsample(scale_factor=2), nn.Conv2d(o, o, 3, 1, 1)]
        self.l = nn.Sequential(*layers, nn.GroupNorm(32, 128, eps=1e-6), nn.SiLU(), nn.Conv2d(128, 3, 3, 1, 1))

    def forward(self, x):
        return self.l(x)


class Function(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, *x):
        return self.call(*x)


def graphs():
    """Graphs of tinygrad's examples and speed tests."""
    def mnist():
        a = [nn.Conv2d(1, 32, 5), nn.ReLU(), nn.Conv2d(32, 32, 5), nn.ReLU(), nn.BatchNorm2d(32), nn.MaxPool2d(2)]
        b = [nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.BatchNorm2d(64), nn.MaxPool2d(2)]
        return nn.Sequential(*a, *b, nn.Flatten(), nn.Linear(576, 10))

    def mlp():
        return nn.Sequential(nn.Linear(784, 512), nn.SiLU(), nn.Linear(512, 512), nn.SiLU(), nn.Linear(512, 10))

    def made(call):
        return lambda: Function(call)

    def of(*shapes):
        return lambda: tuple(torch.randn(*shape) for shape in shapes)

    square, heads = (1024, 1024), (1, 8, 256, 64)
    return {
        "elementwise": (made(lambda x, y: (x * 2 + y).relu() * y - x), of(square, square)),
        "sum": (made(lambda x: x.sum(1)), of(square)),
        "gemv": (made(lambda x, w: x @ w), of((1, 1024), square)),
        "matmul": (made(lambda x, y: x @ y), of(square, square)),
        "softmax": (made(lambda x: x.softmax(1)), of(square)),
        "layernorm": (lambda: nn.LayerNorm(1024), of(square)),
        "mlp": (mlp, of((64, 784))),
        "conv": (lambda: nn.Conv2d(32, 64, 3, 1, 1), of((8, 32, 56, 56))),
        "mnist": (mnist, of((32, 1, 28, 28))),
        "attention": (made(f.scaled_dot_product_attention), of(heads, heads, heads)),
    }


def networks():
    """Networks by name: functions that return the module and its inputs."""
    import torchvision.models as vision
    import transformers as t

    def policy():
        return nn.Sequential(nn.Linear(12, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 4))

    def gpt2():
        return First(t.GPT2LMHeadModel(t.GPT2Config(n_layer=2, attn_implementation="eager")), use_cache=False)

    def llama():
        sizes = dict(hidden_size=512, intermediate_size=1376, num_hidden_layers=2, num_attention_heads=8)
        config = t.LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=1000, attn_implementation="eager")
        return First(t.LlamaModel(config), use_cache=False)

    def whisper():
        sizes = dict(d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536)
        config = t.WhisperConfig(**sizes, attn_implementation="eager")
        return First(t.models.whisper.modeling_whisper.WhisperEncoder(config))

    image, token = (lambda: (torch.randn(1, 3, 224, 224),)), lambda n: (lambda: (torch.randint(0, n, (1, 32)),))
    return {
        "policy": (policy, lambda: (torch.randn(1, 12),)),
        "resnet18": (lambda: vision.resnet18(weights=None), image),
        "resnet50": (lambda: vision.resnet50(weights=None), image),
        "mobilenetv2": (lambda: vision.mobilenet_v2(weights=None), image),
        "yolo": (Yolo, lambda: (torch.rand(1, 3, 640, 640),)),
        "gpt2": (gpt2, token(50000)),
        "llama": (llama, token(1000)),
        "whisper": (whisper, lambda: (torch.randn(1, 80, 3000),)),
        "unet": (Unet, lambda: (torch.randn(1, 320, 32, 32), torch.randn(1, 1280), torch.randn(1, 77, 768))),
        "vae": (Decoder, lambda: (torch.randn(1, 4, 32, 32),)),
        **graphs(),
    }


GRAPHS = list(graphs())
DEFAULTS = {"tinygrad": GRAPHS, "openblas": ["matmul"]}.get(PEER) or [n for n in networks() if n not in GRAPHS]


def export(name):
    make, inputs = networks()[name]
    torch.manual_seed(1)
    model, inputs = make().eval(), inputs()
    names = [f"x{i}" for i in range(len(inputs))]
    options = dict(opset_version=18, dynamo=True, external_data=False, verbose=False)
    torch.onnx.export(model, inputs, folder / f"{name}.onnx", input_names=names, output_names=["y"], **options)
    for input, value in zip(names, inputs):
        np.save(folder / f"{name}.{input}.npy", value.numpy())


def peer(path, inputs):
    """Function that runs the network on the peer and returns its result."""
    if PEER == "openblas":
        a, b = inputs.values()
        return lambda: a @ b
    if PEER == "tinygrad":
        from tinygrad import Tensor, TinyJit
        from tinygrad.nn.onnx import OnnxRunner
        runner = OnnxRunner(str(path))
        step = TinyJit(lambda **x: next(iter(runner(x).values())).realize())
        return lambda: step(**{name: Tensor(x).realize() for name, x in inputs.items()}).numpy()
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    # Spinning threads would take processor time from orind.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, inputs)[0]


def compare(name):
    path = folder / f"{name}.onnx"
    if not path.exists():
        export(name)
    files = {file.name.split(".")[1]: file for file in sorted(folder.glob(f"{name}.x*.npy"))}
    inputs = {input: np.load(file) for input, file in files.items()}
    run = peer(path, inputs)
    want = run()
    run()
    begin = time.perf_counter()
    run()
    runs = max(3, min(300, int(1 / (time.perf_counter() - begin))))
    ours, theirs = [], []
    for _ in range(ROUNDS):
        times = []
        for _ in range(runs):
            begin = time.perf_counter()
            run()
            times.append(time.perf_counter() - begin)
        theirs.append(statistics.median(times) * 1e3)
        command = [orinctl, "run", path, "-t", str(THREADS), "--repeat", str(runs), "--json"]
        for input, file in files.items():
            command += ["--input", f"{input}={file}"]
        document = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        ours.append(document["run_ms"])
    have = np.array(document["outputs"]["y"]["values"], dtype=np.float32).reshape(want.shape)
    ratios = [b / a for a, b in zip(ours, theirs)]
    spread = f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
    error = np.abs(have - want).max() / np.abs(want).max()
    print(f"| {name} | {statistics.median(ours):.3f} | {statistics.median(theirs):.3f} | {spread} | {error:.1e} |", flush=True)


folder.mkdir(exist_ok=True)
print(f"| network | orind, ms | {PEER}, ms | ratio | largest difference |\n|---|---|---|---|---|", flush=True)
for name in sys.argv[3:] or DEFAULTS:
    compare(name)
