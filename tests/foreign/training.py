"""Small programs of tinygrad against numpy: training, tensor cores, and decoding with a KV cache."""

import numpy as np
import pytest
from tinygrad import Tensor, TinyJit, Variable, dtypes, nn

rng = np.random.default_rng(0)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def cross_entropy(logits, labels):
    return -np.log(softmax(logits)[np.arange(len(labels)), labels]).mean()


class Perceptron:
    def __init__(self, hidden, out):
        self.hidden, self.out = Tensor(hidden), Tensor(out)

    def __call__(self, x):
        return (x @ self.hidden.T).relu() @ self.out.T


@pytest.fixture
def perceptron():
    hidden = rng.normal(scale=0.05, size=(64, 784)).astype(np.float32)
    out = rng.normal(scale=0.1, size=(10, 64)).astype(np.float32)
    images = rng.random((64, 784)).astype(np.float32)
    return hidden, out, images, rng.integers(0, 10, 64)


def test_perceptron_by_gradient_descent(perceptron):
    hidden, out, images, labels = perceptron
    net = Perceptron(hidden, out)
    optimiser = nn.optim.SGD(nn.state.get_parameters(net), lr=0.1)
    hidden, out = hidden.astype(np.float64), out.astype(np.float64)
    with Tensor.train():
        for _ in range(6):
            optimiser.zero_grad()
            loss = net(Tensor(images)).sparse_categorical_crossentropy(Tensor(labels))
            loss.backward()
            loss = loss.item()  # which reads the weights as they are
            optimiser.step()

            sums = images @ hidden.T
            active = np.maximum(sums, 0)
            logits = active @ out.T
            assert loss == pytest.approx(cross_entropy(logits, labels), rel=1e-5)
            back = (softmax(logits) - np.eye(10)[labels]) / len(labels)
            hidden -= 0.1 * (back @ out * (sums > 0)).T @ images
            out -= 0.1 * back.T @ active


def test_perceptron_by_adam_replayed(perceptron):
    hidden, out, images, labels = perceptron
    net = Perceptron(hidden, out)
    optimiser = nn.optim.Adam(nn.state.get_parameters(net), lr=1e-3)

    @TinyJit
    def step(x, y):
        optimiser.zero_grad()
        loss = net(x).sparse_categorical_crossentropy(y).backward().realize()
        optimiser.step()
        return loss

    weights = [hidden.astype(np.float64), out.astype(np.float64)]
    first, second = [np.zeros_like(w) for w in weights], [np.zeros_like(w) for w in weights]
    with Tensor.train():
        for n in range(1, 9):
            loss = step(Tensor(images).realize(), Tensor(labels).realize()).item()

            sums = images @ weights[0].T
            active = np.maximum(sums, 0)
            logits = active @ weights[1].T
            assert loss == pytest.approx(cross_entropy(logits, labels), rel=1e-4)
            back = (softmax(logits) - np.eye(10)[labels]) / len(labels)
            gradients = [(back @ weights[1] * (sums > 0)).T @ images, back.T @ active]
            for w, g, m, v in zip(weights, gradients, first, second):
                m += 0.1 * (g - m)
                v += 0.001 * (g * g - v)
                w -= 1e-3 * (m / (1 - 0.9**n)) / (np.sqrt(v / (1 - 0.999**n)) + 1e-8)


class Convolutional:
    def __init__(self):
        self.first, self.second = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3)
        self.norm, self.out = nn.BatchNorm(16), nn.Linear(16 * 25, 10)

    def __call__(self, x):
        x = self.first(x).relu().max_pool2d()
        return self.out(self.norm(self.second(x).relu()).max_pool2d().flatten(1))


def convolve(x, weight, bias):
    windows = np.lib.stride_tricks.sliding_window_view(x, weight.shape[2:], (2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, weight, optimize=True) + bias[:, None, None]


def pool(x):
    n, c, h, w = x.shape
    return x[:, :, : h // 2 * 2, : w // 2 * 2].reshape(n, c, h // 2, 2, w // 2, 2).max((3, 5))


def convolutional_loss(p, images, labels):
    """The same in f64."""
    x = pool(np.maximum(convolve(images, p["first.weight"], p["first.bias"]), 0))
    x = np.maximum(convolve(x, p["second.weight"], p["second.bias"]), 0)
    mean, variance = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
    x = (x - mean) / np.sqrt(variance + 1e-5) * p["norm.weight"][:, None, None] + p["norm.bias"][:, None, None]
    x = pool(x).reshape(len(images), -1)
    return cross_entropy(x @ p["out.weight"].T + p["out.bias"], labels)


def test_convolutional_net():
    """Losses are those of numpy at the same weights, and gradients its slopes in random directions."""
    net = Convolutional()
    trained = {k: v for k, v in nn.state.get_state_dict(net).items() if "running" not in k and "tracked" not in k}
    optimiser = nn.optim.AdamW(list(trained.values()))
    images, labels = rng.random((16, 1, 28, 28)).astype(np.float32), rng.integers(0, 10, 16)
    losses = []
    with Tensor.train():
        for _ in range(4):
            weights = {k: v.numpy().astype(np.float64) for k, v in trained.items()}
            optimiser.zero_grad()
            loss = net(Tensor(images)).sparse_categorical_crossentropy(Tensor(labels))
            loss.backward()
            losses.append(loss.item())
            gradients = {k: v.grad.numpy() for k, v in trained.items()}
            optimiser.step()
            assert losses[-1] == pytest.approx(convolutional_loss(weights, images, labels), rel=1e-5)
            for name, gradient in gradients.items():
                way = rng.normal(size=gradient.shape)
                ahead, behind = ({**weights, name: weights[name] + e * way} for e in (1e-6, -1e-6))
                slope = convolutional_loss(ahead, images, labels) - convolutional_loss(behind, images, labels)
                size = np.linalg.norm(gradient) * np.linalg.norm(way)
                assert (gradient * way).sum() == pytest.approx(slope / 2e-6, abs=1e-4 * size + 1e-6), name
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("size", [64, 128, 256])
@pytest.mark.parametrize("kind, into", [("half", "float"), ("half", "half"), ("bfloat16", "float"), ("float", "float")])
def test_matrix_product(kind, into, size):
    a, b = (Tensor(rng.normal(size=(size, size)).astype(np.float32)).cast(kind).realize() for _ in range(2))
    result = a.matmul(b, dtype=getattr(dtypes, into)).float().numpy()
    a, b = a.float().numpy().astype(np.float64), b.float().numpy().astype(np.float64)
    # Each addition to a half-precision sum rounds.
    bound = (np.abs(a) @ np.abs(b)) * (2.0**-11 * np.sqrt(size) if into == "half" else 2.0**-24 * size)
    assert (np.abs(result - a @ b) <= bound).all()


WIDTH, HEADS, LAYERS, VOCABULARY, CONTEXT = 64, 4, 2, 100, 32
SHAPES = {"q": (64, 64), "k": (64, 64), "v": (64, 64), "o": (64, 64), "up": (64, 256), "gate": (64, 256), "down": (256, 64)}


def last_logits(weights, sequence):
    """All positions at once, in f64."""

    def norm(x):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)

    x, n = weights["embed"][sequence].astype(np.float64), len(sequence)
    for i in range(LAYERS):
        h = norm(x)
        q, k, v = ((h @ weights[f"{name}{i}"]).reshape(n, HEADS, -1) for name in "qkv")
        scores = np.einsum("qhd,khd->hqk", q, k) * (WIDTH // HEADS) ** -0.5
        scores = softmax(np.where(np.tril(np.ones((n, n))), scores, -1e30))
        x = x + np.einsum("hqk,khd->qhd", scores, v).reshape(n, WIDTH) @ weights[f"o{i}"]
        h = norm(x)
        up, gate = h @ weights[f"up{i}"], h @ weights[f"gate{i}"]
        x = x + (up / (1 + np.exp(-up)) * gate) @ weights[f"down{i}"]
    return (norm(x) @ weights["embed"].T)[-1]


def test_decode_with_cache():
    """Twelve greedy tokens, each from a replayed step that sees one new position."""
    shapes = {"embed": (VOCABULARY, WIDTH)} | {f"{k}{i}": s for i in range(LAYERS) for k, s in SHAPES.items()}
    weights = {k: rng.normal(scale=0.1, size=s).astype(np.float32) for k, s in shapes.items()}
    on_gpu = {k: Tensor(v).realize() for k, v in weights.items()}
    shape = (CONTEXT, HEADS, WIDTH // HEADS)
    caches = [[Tensor.zeros(*shape).contiguous().realize() for _ in "kv"] for _ in range(LAYERS)]

    def norm(x):
        return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()

    @TinyJit
    def step(token, position):
        x = on_gpu["embed"][token]
        for i, cache in enumerate(caches):
            h = norm(x)
            q, *new = ((h @ on_gpu[f"{name}{i}"]).reshape(1, HEADS, -1) for name in "qkv")
            for kept, row in zip(cache, new):
                kept.shrink(((position, position + 1), None, None)).assign(row).realize()
            k, v = (kept.shrink(((0, position + 1), None, None)) for kept in cache)
            scores = ((q * k).sum(-1).transpose(0, 1) * (WIDTH // HEADS) ** -0.5).softmax(-1)
            seen = (scores.transpose(0, 1).unsqueeze(-1) * v).sum(0).reshape(1, WIDTH)
            x = x + seen @ on_gpu[f"o{i}"]
            h = norm(x)
            x = x + ((h @ on_gpu[f"up{i}"]).silu() * (h @ on_gpu[f"gate{i}"])) @ on_gpu[f"down{i}"]
        return (norm(x) @ on_gpu["embed"].T).realize()

    sequence = [1]
    for n in range(12):
        position = Variable("position", 0, CONTEXT - 1).bind(n)
        logits = step(Tensor([sequence[-1]]).realize(), position).numpy()[0]
        np.testing.assert_allclose(logits, last_logits(weights, sequence), atol=1e-5)
        sequence.append(int(logits.argmax()))
