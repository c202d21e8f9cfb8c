#!/usr/bin/env python3
"""Computes the expected results of `orinctl perplexity` and `orinctl kld` for `tests/host/quality.rs`.

Runs the small models of tests/data/models in numpy's f64, with weights dequantised by the `gguf` package, on seeded token
ids, divided into chunks as by llama.cpp's llama-perplexity. Uses no code of this repository. Needs: pip install gguf
numpy. Run from the repository root.
"""

import json
import pathlib

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

DATA = pathlib.Path("tests/data")
CONTEXT, CHUNKS = 48, 3
BASE, MODELS = "tiny-llama-f16", ["tiny-llama-Q8_0", "tiny-llama-Q6_K", "tiny-llama-Q4_K_M"]


class Llama:
    def __init__(self, name):
        reader = GGUFReader(DATA / f"models/{name}.gguf")
        field = lambda key: reader.fields[key].contents()
        self.weights = {
            t.name: dequantize(t.data, t.tensor_type).astype(np.float64).reshape(t.shape[::-1])
            for t in reader.tensors
        }
        self.layers = field("llama.block_count")
        self.heads = field("llama.attention.head_count")
        self.kv_heads = field("llama.attention.head_count_kv")
        self.size = field("llama.attention.key_length")
        self.eps = field("llama.attention.layer_norm_rms_epsilon")
        self.bos = field("tokenizer.ggml.bos_token_id")
        pair = np.arange(self.size // 2)
        self.rotation = field("llama.rope.freq_base") ** (-2.0 * pair / self.size)
        self.rotation /= self.weights["rope_freqs.weight"]

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.weights[name]

    def rope(self, x):
        angle = np.arange(len(x))[:, None] * self.rotation
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        out = np.empty_like(x)
        out[..., 0::2], out[..., 1::2] = even * cos - odd * sin, even * sin + odd * cos
        return out

    def log_probabilities(self, ids):
        x = self.weights["token_embd.weight"][ids]
        n = len(ids)
        mask = np.where(np.tri(n, dtype=bool), 0.0, -np.inf)
        for layer in range(self.layers):
            w = lambda name: self.weights[f"blk.{layer}.{name}.weight"]
            h = self.norm(x, f"blk.{layer}.attn_norm.weight")
            q = self.rope((h @ w("attn_q").T).reshape(n, self.heads, self.size))
            k = self.rope((h @ w("attn_k").T).reshape(n, self.kv_heads, self.size))
            v = (h @ w("attn_v").T).reshape(n, self.kv_heads, self.size)
            k, v = (np.repeat(a, self.heads // self.kv_heads, axis=1) for a in (k, v))
            scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(self.size) + mask
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            scores /= scores.sum(-1, keepdims=True)
            mixed = np.einsum("hij,jhd->ihd", scores, v).reshape(n, -1)
            x = x + mixed @ w("attn_output").T
            h = self.norm(x, f"blk.{layer}.ffn_norm.weight")
            gate = h @ w("ffn_gate").T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ w("ffn_up").T)) @ w("ffn_down").T
        logits = self.norm(x, "output_norm.weight") @ self.weights["token_embd.weight"].T
        logits -= logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    def scored(self, ids):
        """Log-probabilities of each scored row, and the actual next tokens."""
        rows, targets = [], []
        for chunk in ids.reshape(-1, CONTEXT):
            seen = np.concatenate([[self.bos], chunk[1:]])
            first = CONTEXT // 2
            rows.append(self.log_probabilities(seen)[first:-1])
            targets.append(chunk[first + 1 :])
        return np.concatenate(rows), np.concatenate(targets)


def cost(rows, targets):
    return -rows[np.arange(len(targets)), targets]


def estimate(values):
    return float(values.mean()), float(values.std() / np.sqrt(len(values) - 1))


ids = np.random.default_rng(7).integers(0, 1000, CHUNKS * CONTEXT)
base_rows, targets = Llama(BASE).scored(ids)
base_cost = cost(base_rows, targets)
document = {
    "context": CONTEXT,
    "ids": ids.tolist(),
    "base": BASE,
    "scored": len(targets),
    "base_cost": estimate(base_cost),
    "models": {},
}
for name in MODELS:
    rows, _ = Llama(name).scored(ids)
    kl = (np.exp(base_rows) * (base_rows - rows)).sum(-1)
    document["models"][name] = {
        "cost": estimate(cost(rows, targets)),
        "difference": estimate(cost(rows, targets) - base_cost),
        "kl": estimate(kl),
        "percentiles": {str(p): float(np.percentile(kl, p)) for p in (0, 10, 50, 90, 99, 100)},
        "same": float((rows.argmax(-1) == base_rows.argmax(-1)).mean()),
    }
(DATA / "quality/expected.json").write_text(json.dumps(document, indent=1) + "\n")
print(json.dumps(document["models"], indent=1), document["base_cost"])
