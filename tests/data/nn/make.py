#!/usr/bin/env python3
"""Writes losses.txt next to this file: the losses of each step of training with PyTorch.

    python3 tests/data/nn/make.py        # torch and numpy

A line has a network, an optimiser, and the losses of its steps. Initial weights and the batch come from the hash in
tests/data/ops/unit.py, keyed by the number of the parameter, as in crates/nn/tests/networks/training.rs.
"""

import pathlib
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "ops"))
from unit import unit  # noqa: E402

STEPS = 20
BATCH = 16


def numbers(seed, shape, low, high):
    count = 1
    for n in shape:
        count *= n
    values = (low + unit(seed, count) * (high - low)).astype("float32")
    return torch.tensor(values).double().reshape(shape)


class Mlp(nn.Module):
    shape = (BATCH, 8)

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


class Convolutional(nn.Module):
    shape = (BATCH, 1, 8, 8)

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.out = nn.Linear(64, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.out(x.flatten(1))


OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
    "lamb": lambda p: Lamb(p, 0.01, 0.1),
}


class Lamb:
    """Algorithm 2 of arXiv 1904.00962."""

    def __init__(self, parameters, rate, decay):
        self.parameters, self.rate, self.decay, self.t = list(parameters), rate, decay, 0
        self.mean = [torch.zeros_like(p) for p in self.parameters]
        self.square = [torch.zeros_like(p) for p in self.parameters]

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None

    @torch.no_grad()
    def step(self):
        self.t += 1
        for p, mean, square in zip(self.parameters, self.mean, self.square):
            mean.mul_(0.9).add_(p.grad, alpha=0.1)
            square.mul_(0.999).add_(p.grad.square(), alpha=0.001)
            by = (mean / (1 - 0.9**self.t)) / ((square / (1 - 0.999**self.t)).sqrt() + 1e-8)
            by = by + self.decay * p
            own, step = p.norm(), by.norm()
            trust = own / step if own > 0 and step > 0 else 1.0
            p.sub_(self.rate * trust * by)


def main():
    torch.set_default_dtype(torch.float64)
    lines = []
    for name, kind in [("mlp", Mlp), ("conv", Convolutional)]:
        for optimiser, of in OPTIMISERS.items():
            net = kind()
            with torch.no_grad():
                for i, p in enumerate(net.parameters()):
                    low, high = (0.5, 1.5) if "norm.weight" in list(dict(net.named_parameters()))[i] else (-0.4, 0.4)
                    p.copy_(numbers(i + 1, list(p.shape), low, high))
            x = numbers(100, kind.shape, -1.0, 1.0)
            classes = torch.tensor((unit(101, BATCH) * 4).astype("int64"))
            steps = of(net.parameters())
            losses = []
            for _ in range(STEPS):
                steps.zero_grad()
                loss = F.cross_entropy(net(x), classes)
                loss.backward()
                steps.step()
                losses.append(loss.item())
            lines.append(" ".join([name, optimiser, *(f"{v:.7g}" for v in losses)]))
    (pathlib.Path(__file__).parent / "losses.txt").write_text("\n".join(lines) + "\n")


main()
