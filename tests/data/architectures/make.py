#!/usr/bin/env python3
"""Generates tests/data/architectures: for each architecture a small model with every feature, exact logits, and the
errors of llama.cpp's logits.

    make.py LLAMA_CPP [NAME...]

LLAMA_CPP is a folder with llama.cpp's sources and a build in `build/`. Needs numpy and gguf from PyPI, and a C++
compiler. NAME.gguf has F16 and F32 weights of seeded noise. NAME.json has a sequence of tokens and, for each position,
the largest logits in f64. It also has the errors of llama.cpp's logits (F16 cache, no flash attention) with weights in
F32 and in F16. NAME-drawn.json has the same for more sequences, with weights in Q8_0; for gpt-oss also with experts in
MXFP4. NAME-nextn.json has the logits of the nextn (MTP) layer. The f64 code below follows the models' definitions, not
the code of any engine.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import zlib

import numpy as np
import gguf
from gguf import GGMLQuantizationType as Type

HERE = pathlib.Path(__file__).parent
# Tensors that stay in F32 for any type of matrices.
KEPT = ["ffn_gate_inp.weight", "exps.bias", "ssm_conv1d.weight", "shortconv.conv.weight", "mix_lerp_"] + [
    f"time_mix_{part}{i}" for part in "wavg" for i in (0, 1, 2)]
TOKENS = 40
TOP = 12
# Number of sequences for the errors of quantised weights, and of logits for each of their positions.
DRAWS = 16
TOP_DRAWN = 3
VOCABULARY = 128
WIDTH = 64


class Model:
    """Metadata, and weights as `f64` values of the numbers in the file."""

    def __init__(self, name, architecture, layers, **hyper):
        self.name, self.architecture, self.layers = name, architecture, layers
        self.random = np.random.default_rng(zlib.crc32(name.encode()))
        self.keys, self.weights = {}, {}
        self.h = dict(context=512, heads=4, kv_heads=2, head=16, ff=96, eps=1e-5, rms=True,
                      base=10000.0, gated=True, act="silu", style="halves", contexts=[512], **{})
        self.h.update(hyper)
        h = self.h
        self.set("vocab_size", VOCABULARY)
        self.set("context_length", h["context"])
        self.set("embedding_length", WIDTH)
        self.set("block_count", layers)
        self.set("feed_forward_length", h["ff"])
        self.set("attention.head_count", h["heads"])
        self.set("attention.head_count_kv", h["kv_heads"])
        if isinstance(h["head"], int) and h["head"] != WIDTH // h["heads"]:
            self.set("attention.key_length", h["head"])
            self.set("attention.value_length", h["head"])
        self.set("attention.layer_norm_rms_epsilon" if h["rms"] else "attention.layer_norm_epsilon", h["eps"])
        if h.get("rotated"):
            self.set("rope.dimension_count", h["rotated"])
        self.matrix("token_embd", VOCABULARY, WIDTH, 1.0)

    def set(self, key, value):
        self.keys[f"{self.architecture}.{key}"] = value

    def noise(self, shape, deviation, mean=0.0):
        return self.random.normal(mean, deviation, shape)

    def matrix(self, name, *shape):
        """Adds a matrix of shape `rows, columns` or `experts, rows, columns`; a last float is its standard deviation."""
        deviation = 1.2 / np.sqrt(shape[-1])
        if isinstance(shape[-1], float):
            *shape, deviation = shape
        self.weights[f"{name}.weight"] = self.noise(tuple(shape), deviation).astype(np.float16).astype(np.float64)

    def vector(self, name, n, mean=0.0, deviation=0.2):
        self.weights[name] = self.noise(n, deviation, mean).astype(np.float32).astype(np.float64)

    def norm(self, name, n=WIDTH):
        self.vector(f"{name}.weight", n, 1.0)
        if not self.h["rms"]:
            self.vector(f"{name}.bias", n)

    def per_layer(self, what, i):
        value = self.h[what]
        return value[i] if isinstance(value, list) else value

    def layer(self, i, biases=(), fused_qkv=False, fused_up=False, qk_norm=False, after=False, parallel=False,
              mixer=None):
        p, heads, kv = f"blk.{i}.", self.h["heads"], self.per_layer("kv_heads", i)
        head, ff = self.per_layer("head", i), self.per_layer("ff", i)
        self.norm(p + "attn_norm")
        sizes = {"attn_q": heads * head * (2 if self.h.get("attention_gate") else 1), "attn_k": kv * head,
                 "attn_v": kv * head}
        if fused_qkv:
            sizes = {"attn_qkv": (heads + 2 * kv) * head}
        if mixer:
            mixer(p)
        else:
            for name, rows in sizes.items():
                self.matrix(p + name, rows, WIDTH)
            self.matrix(p + "attn_output", WIDTH, heads * head)
        if qk_norm and not mixer:
            whole = qk_norm == "row"
            self.vector(p + "attn_q_norm.weight", heads * head if whole else head, 1.0)
            self.vector(p + "attn_k_norm.weight", kv * head if whole else head, 1.0)
        if after:
            self.norm(p + "post_attention_norm")
            self.norm(p + "post_ffw_norm")
        if not parallel:
            self.norm(p + self.h.get("ffn_norm", "ffn_norm"))
        if self.h.get("sinks"):
            self.vector(p + "attn_sinks.weight", heads, 0.0, 2.0)
        experts = self.h.get("experts")
        if experts:
            self.experts(p, **experts)
        if not experts or experts.get("beside"):
            if self.h["gated"] and not fused_up:
                self.matrix(p + "ffn_gate", ff, WIDTH)
            self.matrix(p + "ffn_up", 2 * ff if fused_up else ff, WIDTH)
            self.matrix(p + "ffn_down", WIDTH, ff)
        for name in biases:
            self.vector(p + name + ".bias", self.weights[p + name + ".weight"].shape[0])

    def experts(self, p, count, width, shared=None, spread=1.2, biased=False, beside=False, **_):
        self.matrix(p + "ffn_gate_inp", count, WIDTH)
        if beside:
            self.matrix(p + "ffn_gate_up_exps", count, 2 * width, WIDTH)
            self.vector(p + "ffn_gate_inp.scale", WIDTH, np.sqrt(WIDTH), 1.0)
            self.vector(p + "ffn_down_exps.scale", count, 1.0)
            for name in "pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2":
                self.norm(p + name)
        else:
            self.matrix(p + "ffn_gate_exps", count, width, WIDTH, spread / np.sqrt(WIDTH))
            self.matrix(p + "ffn_up_exps", count, width, WIDTH, spread / np.sqrt(WIDTH))
        # Small, so that a routing decision that rounding flips does not dominate the logits.
        self.matrix(p + "ffn_down_exps", count, WIDTH, width, 0.5 * (1.2 / spread) ** 2 / np.sqrt(width))
        if biased:
            self.vector(p + "ffn_gate_inp.bias", count)
            for part, rows in ("gate", width), ("up", width), ("down", WIDTH):
                self.vector(p + f"ffn_{part}_exps.bias", (count, rows), 0.0, 0.05)
        if shared:
            self.vector(p + "ffn_gate_inp_shexp.weight", WIDTH)
            self.matrix(p + "ffn_gate_shexp", shared, WIDTH)
            self.matrix(p + "ffn_up_shexp", shared, WIDTH)
            self.matrix(p + "ffn_down_shexp", WIDTH, shared)

    def gated_delta(self, p):
        d = self.h["delta"]
        inner, mixed = d["values"] * d["size"], (2 * d["keys"] + d["values"]) * d["size"]
        self.matrix(p + "attn_qkv", mixed, WIDTH)
        self.matrix(p + "attn_gate", inner, WIDTH)
        self.matrix(p + "ssm_conv1d", mixed, d["taps"], 0.7)
        if d["grouped"]:
            self.matrix(p + "ssm_ba", 2 * d["values"], WIDTH)
        else:
            self.matrix(p + "ssm_alpha", d["values"], WIDTH)
            self.matrix(p + "ssm_beta", d["values"], WIDTH)
        self.vector(p + "ssm_dt.bias", d["values"], 0.5)
        self.vector(p + "ssm_a", d["values"], -0.6)
        self.vector(p + "ssm_norm.weight", d["size"], 1.0)
        self.matrix(p + "ssm_out", WIDTH, inner)

    def short_conv(self, p):
        self.matrix(p + "shortconv.in_proj", 3 * WIDTH, WIDTH)
        self.matrix(p + "shortconv.conv", WIDTH, self.h["taps"], 0.7)
        self.matrix(p + "shortconv.out_proj", WIDTH, WIDTH)

    def rwkv(self, i):
        p, width, ranks = f"blk.{i}.", WIDTH, self.h["ranks"]
        self.norm(p + "attn_norm")
        self.norm(p + "attn_norm_2")
        for part in "wavg":
            rank = ranks["a" if i == 0 and part == "v" else part]
            if part != "g":
                self.vector(p + f"time_mix_{part}0.weight", width, 0.3, 0.6)
            self.matrix(p + f"time_mix_{part}1", rank, width)
            self.matrix(p + f"time_mix_{part}2", width, rank)
        self.weights[p + "time_mix_lerp_fused.weight"] = self.random.uniform(0, 1, (6, 1, 1, width)).astype(
            np.float32).astype(np.float64)
        for part in "k_k", "k_a":
            self.vector(p + f"time_mix_{part}.weight", width, 0.9)
        self.vector(p + "time_mix_r_k.weight", width)
        for part in "receptance", "key", "value", "output":
            self.matrix(p + f"time_mix_{part}", width, width)
        self.norm(p + "time_mix_ln")
        self.weights[p + "channel_mix_lerp_k.weight"] = self.random.uniform(0, 1, (1, 1, width)).astype(
            np.float32).astype(np.float64)
        self.matrix(p + "channel_mix_key", self.h["ff"], width)
        self.matrix(p + "channel_mix_value", width, self.h["ff"])

    def end(self, tied=True, bias=False):
        self.norm(self.h.get("output_norm", "output_norm"))
        if not tied:
            self.matrix("output", VOCABULARY, WIDTH)
        if bias:
            self.vector("output.bias", VOCABULARY)
        return self

    def write(self, path, matrices, experts=None):
        """Writes a file with this type of matrices, or another for experts. Returns the weights as stored."""
        writer = gguf.GGUFWriter(path, self.architecture)
        writer.add_string("tokenizer.ggml.model", "none")
        for key, value in self.keys.items():
            if isinstance(value, bool):
                writer.add_bool(key, value)
            elif isinstance(value, int):
                writer.add_uint32(key, value)
            elif isinstance(value, float):
                writer.add_float32(key, value)
            elif isinstance(value, str):
                writer.add_string(key, value)
            else:
                writer.add_array(key, value)
        stored = {}
        for name, values in self.weights.items():
            if values.ndim == 1 or matrices == Type.F32 or any(part in name for part in KEPT):
                data, kind = values.astype(np.float32), Type.F32
            elif matrices == Type.F16:
                data, kind = values.astype(np.float16), Type.F16
            else:
                kind = experts if experts and values.ndim == 3 else matrices
                data = gguf.quantize(values.astype(np.float32), kind)
            writer.add_tensor(name, data, raw_dtype=kind)
            stored[name] = gguf.dequantize(data, kind).astype(np.float64)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return stored


def frequencies(base, rotated):
    return base ** (-2.0 * np.arange(rotated // 2) / rotated)


def yarn(plain, base, factor, original, fast, slow, whole=True):
    """Peng et al., 2023, section 3.2, with a ramp between whole pairs or not."""
    d = 2 * len(plain)
    at = lambda turns: d * np.log(original / (turns * 2 * np.pi)) / (2 * np.log(base))
    low, high = at(fast), at(slow)
    if whole:
        low, high = max(np.floor(low), 0), min(np.ceil(high), d - 1)
    ramp = np.clip((np.arange(len(plain)) - low) / max(high - low, 0.001), 0, 1)
    return plain / factor * ramp + plain * (1 - ramp)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Exact:
    """The architecture in f64, all positions at once."""

    def __init__(self, model, weights, context):
        self.m, self.h, self.w, self.context = model, model.h, weights, context

    def norm(self, x, name, eps=None):
        eps = self.h["eps"]
        if not self.h["rms"]:
            x = x - x.mean(-1, keepdims=True)
        y = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
        if name is None:
            return y
        y = y * self.w[name + ".weight"]
        return y + self.w[name + ".bias"] if not self.h["rms"] else y

    def linear(self, x, name):
        y = x @ self.w[name + ".weight"].T
        return y + self.w[name + ".bias"] if name + ".bias" in self.w else y

    def act(self, x):
        if self.h["act"] == "silu":
            return x / (1 + np.exp(-x))
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))

    def rotate(self, x, f, magnitude):
        """Rotates `x [T, H, D]`: as many pairs as there are frequencies, from the first."""
        n = len(f)
        angle = np.arange(x.shape[0])[:, None] * f
        c, s = np.cos(angle)[:, None] * magnitude, np.sin(angle)[:, None] * magnitude
        y = x.copy()
        if self.h["style"] == "halves":
            a, b = x[..., :n], x[..., n:2 * n]
            y[..., :n], y[..., n:2 * n] = a * c - b * s, a * s + b * c
        else:
            a, b = x[..., 0:2 * n:2], x[..., 1:2 * n:2]
            y[..., 0:2 * n:2], y[..., 1:2 * n:2] = a * c - b * s, a * s + b * c
        return y

    def attend(self, q, k, v, i):
        """`q [T, H, D]`, `k` and `v [T, KVH, D]`."""
        t, heads, head = q.shape
        k, v = (np.repeat(x, heads // x.shape[1], axis=1) for x in (k, v))
        scores = np.einsum("thd,shd->hts", q, k) * self.h.get("scale", 1 / np.sqrt(head))
        if "temperature" in self.h:
            slope, length = self.h["temperature"]
            scores = scores * (1 + slope * np.log(1 + np.arange(t) // length))[None, :, None]
        if "attention_cap" in self.h:
            scores = self.h["attention_cap"] * np.tanh(scores / self.h["attention_cap"])
        distance = np.arange(t)[:, None] - np.arange(t)[None, :]
        hidden = distance < 0
        if "window" in self.h and self.windowed(i):
            hidden |= distance >= self.h["window"]
        scores = np.where(hidden, -np.inf, scores)
        most = scores.max(-1, keepdims=True)
        weights = np.exp(scores - most)
        lost = 0.0
        if self.h.get("sinks"):
            lost = np.exp(self.w[f"blk.{i}.attn_sinks.weight"][:, None, None] - most)
        weights /= weights.sum(-1, keepdims=True) + lost
        return np.einsum("hts,shd->thd", weights, v).reshape(t, -1)

    def feed_forward(self, x, p):
        """The feed-forward block: gated, or with experts."""
        n, w, h = self.norm(x, p + self.h.get("ffn_norm", "ffn_norm")), self.w, self.h
        if p + "ffn_gate_inp.weight" not in w:
            return self.linear(self.act(self.linear(n, p + "ffn_gate")) * self.linear(n, p + "ffn_up"), p + "ffn_down")
        e = h["experts"]
        if e.get("beside"):
            dense = self.linear(self.act(self.linear(n, p + "ffn_gate")) * self.linear(n, p + "ffn_up"), p + "ffn_down")
            seen = self.norm(x, None) * w[p + "ffn_gate_inp.scale"] / np.sqrt(WIDTH)
            mixed = self.mixture(self.norm(x, p + "pre_ffw_norm_2"), self.linear(seen, p + "ffn_gate_inp"), p)
            both = self.norm(dense, p + "post_ffw_norm_1") + self.norm(mixed, p + "post_ffw_norm_2")
            return self.norm(both, p + "post_ffw_norm")
        y = self.mixture(n, self.linear(n, p + "ffn_gate_inp"), p)
        if e.get("shared"):
            inner = self.act(self.linear(n, p + "ffn_gate_shexp")) * self.linear(n, p + "ffn_up_shexp")
            open_ = sigmoid(n @ w[p + "ffn_gate_inp_shexp.weight"])[:, None]
            y = y + open_ * self.linear(inner, p + "ffn_down_shexp")
        return y

    def mixture(self, n, logits, p):
        e, scores = self.h["experts"], np.exp(logits)
        scores /= scores.sum(-1, keepdims=True)
        y = np.zeros_like(n)
        for row, s in enumerate(scores):
            best = np.argsort(-s)[:e["used"]]
            whole = s[best].sum() if e["normalised"] else 1.0
            for i in best:
                scale = self.w[p + "ffn_down_exps.scale"][i] if e.get("beside") else 1.0
                y[row] += s[i] / whole * scale * self.expert(n[row], p, i)
        return y

    def expert(self, x, p, i):
        def product(x, part):
            name, both = p + f"ffn_{part}_exps", self.w.get(p + "ffn_gate_up_exps.weight")
            if both is not None and part != "down":
                return np.split(both[i], 2)[part == "up"] @ x
            y = self.w[name + ".weight"][i] @ x
            return y + self.w[name + ".bias"][i] if name + ".bias" in self.w else y
        gate, up = product(x, "gate"), product(x, "up")
        if self.h["act"] == "clamped":
            gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
            return product(gate * sigmoid(1.702 * gate) * (up + 1), "down")
        return product(self.act(gate) * up, "down")

    def convolved(self, x, weight):
        """Causal convolution of each channel; the last weight is for the current value."""
        taps = weight.shape[1]
        past = np.concatenate([np.zeros((taps - 1, x.shape[1])), x])
        return sum(past[tap:tap + len(x)] * weight[:, tap] for tap in range(taps))

    def gated_delta(self, n, p):
        """Yang et al., 2024: S = a S - a b k (k^T S) + b k v^T, read by q, token by token."""
        d, w, t = self.h["delta"], self.w, len(n)
        size, keys, values = d["size"], d["keys"], d["values"]
        mixed = self.convolved(self.linear(n, p + "attn_qkv"), w[p + "ssm_conv1d.weight"])
        mixed = mixed * sigmoid(mixed)
        q, k, v = np.split(mixed, [keys * size, 2 * keys * size], axis=1)
        unit = lambda x: x / np.sqrt((x * x).sum(-1, keepdims=True) + self.h["eps"])
        q, k, v = (x.reshape(t, -1, size) for x in (q, k, v))
        q, k = unit(q) / np.sqrt(size), unit(k)
        group = values // keys
        if d["grouped"]:
            # Adjacent value heads share a key head; the rows of their gates are adjacent too.
            both = self.linear(n, p + "ssm_ba").reshape(t, keys, 2, group)
            beta, step = both[:, :, 0].reshape(t, -1), both[:, :, 1].reshape(t, -1)
            key_of = lambda head: head // group
        else:
            beta, step = self.linear(n, p + "ssm_beta"), self.linear(n, p + "ssm_alpha")
            key_of = lambda head: head % keys
        decay = np.exp(w[p + "ssm_a"] * np.log1p(np.exp(step + w[p + "ssm_dt.bias"])))
        beta = sigmoid(beta)
        state, out = np.zeros((values, size, size)), np.zeros((t, values, size))
        for row in range(t):
            for head in range(values):
                key, s = k[row, key_of(head)], state[head] * decay[row, head]
                state[head] = s + np.outer(key, beta[row, head] * (v[row, head] - key @ s))
                out[row, head] = q[row, key_of(head)] @ state[head]
        z = self.linear(n, p + "attn_gate").reshape(t, values, size)
        out = self.norm(out, p + "ssm_norm") * (z * sigmoid(z))
        return self.linear(out.reshape(t, -1), p + "ssm_out")

    def short_conv(self, n, p):
        before, after, x = np.split(self.linear(n, p + "shortconv.in_proj"), 3, axis=1)
        return self.linear(after * self.convolved(before * x, self.w[p + "shortconv.conv.weight"]),
                           p + "shortconv.out_proj")

    def time_mix(self, n, p, first):
        """Peng et al., 2025, section 4: S = S diag(w) + S a^T b + v^T k, read by r, token by token."""
        w, t, size = self.w, len(n), self.h["head"]
        back = np.concatenate([np.zeros((1, WIDTH)), n[:-1]]) - n
        xr, xw, xk, xv, xa, xg = (n + back * share for share in w[p + "time_mix_lerp_fused.weight"].reshape(6, -1))
        of = lambda x, name: self.linear(x, p + "time_mix_" + name)
        raised = lambda x, part: sigmoid(of(x, part + "2") + w[p + f"time_mix_{part}0.weight"])
        heads = lambda x: x.reshape(t, -1, size)
        r, k, v = of(xr, "receptance"), of(xk, "key"), of(xv, "value")
        decay = np.exp(-np.exp(-0.5) * raised(np.tanh(of(xw, "w1")), "w"))
        rate = raised(of(xa, "a1"), "a")
        if first is not None:
            v = v + (first - v) * raised(of(xv, "v1"), "v")
        taken = heads(k * w[p + "time_mix_k_k.weight"])
        taken = taken / np.maximum(np.sqrt((taken * taken).sum(-1, keepdims=True)), 1e-12)
        k = k * (1 + (rate - 1) * w[p + "time_mix_k_a.weight"])
        r, k, own, decay, rate = map(heads, (r, k, v, decay, rate))
        state, out = np.zeros((WIDTH // size, size, size)), np.zeros((t, WIDTH // size, size))
        for row in range(t):
            for head, s in enumerate(state):
                a, b = -taken[row, head], taken[row, head] * rate[row, head]
                state[head] = s * decay[row, head] + np.outer(s @ a, b) + np.outer(own[row, head], k[row, head])
                out[row, head] = state[head] @ r[row, head]
        out = out - out.mean(-1, keepdims=True)
        out = out / np.sqrt((out * out).mean(-1, keepdims=True) + 64e-5)
        out = out.reshape(t, -1) * w[p + "time_mix_ln.weight"] + w[p + "time_mix_ln.bias"]
        bonus = (r * k * w[p + "time_mix_r_k.weight"].reshape(-1, size)).sum(-1, keepdims=True)
        out = (out + (bonus * own).reshape(t, -1)) * of(sigmoid(of(xg, "g1")), "g2")
        return of(out, "output"), v

    def channel_mix(self, n, p):
        back = np.concatenate([np.zeros((1, WIDTH)), n[:-1]]) - n
        k = self.linear(n + back * self.w[p + "channel_mix_lerp_k.weight"].reshape(-1), p + "channel_mix_key")
        return self.linear(np.maximum(k, 0) ** 2, p + "channel_mix_value")

    def qk_norm(self, x, name):
        """QK norm over groups of as many adjacent values as the norm has weights."""
        weight = self.w.get(name + ".weight")
        return x if weight is None else self.norm(x.reshape(len(x), -1, len(weight)), name)

    def windowed(self, i):
        return self.h["windowed"][i]

    def rope(self, i):
        ropes = self.h["rope"](self)
        return ropes[i] if isinstance(ropes, list) else ropes

    def logits(self, tokens):
        return self.output(self.hidden(tokens))

    def hidden(self, tokens):
        """Hidden states before the output projection."""
        h, w, t = self.h, self.w, len(tokens)
        x = w["token_embd.weight"][tokens] * h.get("embedding_scale", 1.0)
        if "position_embd.weight" in w:
            x = x + w["position_embd.weight"][:t]
        if "token_embd_norm.bias" in w:
            x = self.norm(x, "token_embd_norm")
        beside = None
        if "beside" in h:
            n = h["beside"]
            looked_up = w["per_layer_token_embd.weight"][tokens] * np.sqrt(n)
            made = (x @ w["per_layer_model_proj.weight"].T) / np.sqrt(WIDTH)
            made = self.norm(made.reshape(t, -1, n), "per_layer_proj_norm")
            beside = (made + looked_up.reshape(t, -1, n)) / np.sqrt(2)
        x = self.through(range(self.m.layers), x, beside)
        return self.norm(x, h.get("output_norm", "output_norm"))

    def through(self, layers, x, beside=None):
        h, w, t, first, kept = self.h, self.w, len(x), None, {}
        for i in layers:
            p, head, kv = f"blk.{i}.", self.m.per_layer("head", i), self.m.per_layer("kv_heads", i)
            q_size, kv_size = h["heads"] * head, kv * head
            n = self.norm(x, p + "attn_norm")
            if p + "time_mix_w0.weight" in w:
                given, values = self.time_mix(n, p, first)
                first = values if first is None else first
                x = x + given
                x = x + self.channel_mix(self.norm(x, p + "attn_norm_2"), p)
                continue
            if p + "ssm_a" in w or p + "shortconv.conv.weight" in w:
                x = x + (self.gated_delta(n, p) if p + "ssm_a" in w else self.short_conv(n, p))
                x = x + self.feed_forward(x, p)
                continue
            if p + "attn_qkv.weight" in w:
                q, k, v = np.split(self.linear(n, p + "attn_qkv"), [q_size, q_size + kv_size], axis=1)
            else:
                q = self.linear(n, p + "attn_q")
                k = self.linear(n, p + "attn_k") if p + "attn_k.weight" in w else None
                v = self.linear(n, p + "attn_v") if p + "attn_v.weight" in w else k
            f, magnitude = self.rope(i)
            gate = 1.0
            if h.get("attention_gate"):
                q, gate = np.split(q.reshape(t, -1, 2 * head), 2, axis=2)
                gate = sigmoid(gate.reshape(t, -1))
            q = self.qk_norm(q, p + "attn_q_norm").reshape(t, -1, head)
            q = self.rotate(q, f, magnitude)
            if k is not None:
                k, v = self.qk_norm(k, p + "attn_k_norm").reshape(t, -1, head), v.reshape(t, -1, head)
                if h.get("value_norm"):
                    v = self.norm(v, None)
                kept[i] = self.rotate(k, f, magnitude), v
            else:
                kept[i] = kept[h["shares"][i]]
            given = self.linear(self.attend(q, *kept[i], i) * gate, p + "attn_output")
            if p + "post_attention_norm.weight" in w and "ffn_norm" not in h:
                given = self.norm(given, p + "post_attention_norm")
            x = x + given * h.get("residual_scale", 1.0)
            if p + "ffn_gate_inp.weight" in w or "ffn_norm" in h:
                x = x + self.feed_forward(x, p)
                x = x * w.get(p + "layer_output_scale.weight", 1.0)
                continue
            if not h.get("parallel"):
                n = self.norm(x, p + "ffn_norm")
            up = self.linear(n, p + "ffn_up")
            if p + "ffn_gate.weight" in w:
                inner = self.act(self.linear(n, p + "ffn_gate")) * up
            elif h["gated"]:
                gate, up = np.split(up, 2, axis=1)
                inner = self.act(gate) * up
            else:
                inner = self.act(up)
            given = self.linear(inner, p + "ffn_down")
            if p + "post_ffw_norm.weight" in w:
                given = self.norm(given, p + "post_ffw_norm")
            x = x + given * h.get("residual_scale", 1.0)
            if beside is not None:
                given = self.act(self.linear(x, p + "inp_gate")) * beside[:, i]
                x = x + self.norm(self.linear(given, p + "proj"), p + "post_norm")
            if p + "layer_output_scale.weight" in w:
                x = x * w[p + "layer_output_scale.weight"]
        return x

    def nextn(self, before, tokens):
        """Hidden states of the nextn (MTP) layer, from each token and the hidden state before it. Follows DeepSeek-V3
        (2024), section 2.2; embeddings come first and both are after the last norm, as in Qwen's checkpoints."""
        p = f"blk.{self.m.layers}.nextn."
        both = self.norm(self.w["token_embd.weight"][tokens], p + "enorm"), self.norm(before, p + "hnorm")
        x = self.through([self.m.layers], self.linear(np.concatenate(both, axis=1), p + "eh_proj"))
        return self.norm(x, p + "shared_head_norm")

    def output(self, x):
        h, w = self.h, self.w
        out = "output" if "output.weight" in w else "token_embd"
        y = x @ w[out + ".weight"].T
        y = y + w["output.bias"] if "output.bias" in w else y
        y = y * h.get("logit_scale", 1.0)
        if "logit_cap" in h:
            y = h["logit_cap"] * np.tanh(y / h["logit_cap"])
        return y


ALL = {}


def architecture(make):
    ALL[make.__name__.replace("_", "-")] = make
    return make


def one_rope(e):
    return frequencies(e.h["base"], e.h.get("rotated", e.h["head"])), 1.0


QKV = ["attn_q", "attn_k", "attn_v"]


@architecture
def llama(name):
    def rope(e):
        f, magnitude = one_rope(e)
        return f / e.w["rope_freqs.weight"], magnitude
    m = Model(name, "llama", 3, style="neighbours", rope=rope, base=500000.0)
    m.set("rope.freq_base", 500000.0)
    m.set("rope.dimension_count", 16)
    m.weights["rope_freqs.weight"] = np.array([1, 1, 1, 1.5, 3, 8, 8, 8], np.float64)
    for i in range(3):
        m.layer(i, QKV + ["attn_output", "ffn_gate", "ffn_up", "ffn_down"])
    return m.end(tied=False)


@architecture
def qwen2(name):
    m = Model(name, "qwen2", 3, rope=one_rope, base=1000000.0)
    m.set("rope.freq_base", 1000000.0)
    for i in range(3):
        m.layer(i, QKV)
    return m.end()


@architecture
def qwen3(name):
    m = Model(name, "qwen3", 3, rope=one_rope, head=32, base=1000000.0)
    m.set("rope.freq_base", 1000000.0)
    for i in range(3):
        m.layer(i, qk_norm=True)
    return m.end()


@architecture
def mistral3(name):
    factor, original, log = 16.0, 16, 0.5

    def rope(e):
        f, _ = one_rope(e)
        sharp = lambda by: 0.1 * by * np.log(factor) + 1
        return yarn(f, e.h["base"], factor, original, 4.0, 1.0), sharp(1.0) / sharp(log)
    m = Model(name, "mistral3", 3, style="neighbours", head=32, rope=rope, temperature=(0.1, original))
    for key, value in {"type": "yarn", "factor": factor, "original_context_length": original,
                       "yarn_beta_fast": 4.0, "yarn_beta_slow": 1.0, "yarn_log_multiplier": log}.items():
        m.set(f"rope.scaling.{key}", value)
    m.set("attention.temperature_scale", 0.1)
    m.set("rope.dimension_count", 32)
    for i in range(3):
        m.layer(i)
    return m.end(tied=False)


@architecture
def smollm3(name):
    def rope(e):
        f, magnitude = one_rope(e)
        return [(f * ((i + 1) % 4 != 0), magnitude) for i in range(e.m.layers)]
    m = Model(name, "smollm3", 5, style="neighbours", rope=rope, base=5000000.0)
    m.set("rope.freq_base", 5000000.0)
    m.set("rope.dimension_count", 16)
    for i in range(5):
        m.layer(i)
    return m.end()


@architecture
def phi3(name):
    def rope(e):
        f, _ = one_rope(e)
        factors = "long" if e.context > 256 else "short"
        return f / e.w[f"rope_factors_{factors}.weight"], 1.1875
    m = Model(name, "phi3", 3, heads=2, kv_heads=1, head=32, rotated=24, rope=rope, contexts=[256, 512])
    m.set("rope.scaling.original_context_length", 256)
    m.set("rope.scaling.attn_factor", 1.1875)
    # Longer than the sequence, because llama.cpp ignores the window of this architecture.
    m.set("attention.sliding_window", 64)
    for length, most in ("short", 1.3), ("long", 24.0):
        m.weights[f"rope_factors_{length}.weight"] = np.linspace(1, most, 12).astype(np.float32).astype(np.float64)
    for i in range(3):
        m.layer(i, fused_qkv=True, fused_up=True)
    return m.end(tied=False)


@architecture
def phi2(name):
    m = Model(name, "phi2", 3, kv_heads=4, rotated=6, gated=False, act="gelu", rms=False, parallel=True,
              rope=one_rope)
    for i in range(3):
        m.layer(i, QKV + ["attn_output", "ffn_up", "ffn_down"], parallel=True)
    return m.end(tied=False, bias=True)


@architecture
def gpt2(name):
    m = Model(name, "gpt2", 3, kv_heads=4, gated=False, act="gelu", rms=False,
              rope=lambda e: (np.zeros(8), 1.0))
    m.matrix("position_embd", 512, WIDTH, 0.3)
    for i in range(3):
        m.layer(i, ["attn_qkv", "attn_output", "ffn_up", "ffn_down"], fused_qkv=True)
    return m.end()


@architecture
def granite(name):
    m = Model(name, "granite", 3, style="neighbours", rope=one_rope, embedding_scale=2.5, residual_scale=0.6,
              logit_scale=1 / 3.0, scale=0.4)
    m.set("rope.dimension_count", 16)
    for key, value in {"embedding_scale": 2.5, "residual_scale": 0.6, "logit_scale": 3.0,
                       "attention.scale": 0.4}.items():
        m.set(key, value)
    for i in range(3):
        m.layer(i)
    return m.end()


@architecture
def gemma(name):
    m = Model(name, "gemma", 3, heads=2, kv_heads=1, head=48, act="gelu", rope=one_rope, embedding_scale=8.0)
    for i in range(3):
        m.layer(i)
    return m.end()


@architecture
def gemma2(name):
    m = Model(name, "gemma2", 4, heads=4, head=32, act="gelu", rope=one_rope, embedding_scale=8.0,
              window=7, windowed=[True, False] * 2, attention_cap=3.0, logit_cap=8.0)
    m.set("attention.sliding_window", 7)
    m.set("attn_logit_softcapping", 3.0)
    m.set("final_logit_softcapping", 8.0)
    for i in range(4):
        m.layer(i, after=True)
    return m.end()


@architecture
def gemma3(name):
    def rope(e):
        near = frequencies(10000.0, e.h["head"]), 1.0
        far = frequencies(1000000.0, e.h["head"]) / 8, 1.0
        return [near if windowed else far for windowed in e.h["windowed"]]
    m = Model(name, "gemma3", 4, head=32, act="gelu", rope=rope, embedding_scale=8.0,
              window=9, windowed=[True, True, False, True])
    m.set("attention.sliding_window", 9)
    m.set("attention.sliding_window_pattern", 3)
    m.set("rope.freq_base", 1000000.0)
    m.set("rope.freq_base_swa", 10000.0)
    m.set("rope.scaling.type", "linear")
    m.set("rope.scaling.factor", 8.0)
    for i in range(4):
        m.layer(i, qk_norm=True, after=True)
    return m.end()


@architecture
def gemma4(name):
    return make_gemma4(name, beside=32, shares={3: 1, 4: 2})


@architecture
def gemma4_moe(name):
    return make_gemma4(name, experts=dict(count=5, used=2, width=32, normalised=True, beside=True))


def make_gemma4(name, **more):
    windowed = [True, True, False, True, False]

    def rope(e):
        near = frequencies(10000.0, 16), 1.0
        far = frequencies(1000000.0, 32) / e.w["rope_freqs.weight"], 1.0
        return [near if near_layer else far for near_layer in windowed]
    m = Model(name, "gemma4", 5, kv_heads=[2, 2, 1, 2, 1], head=[16, 16, 32, 16, 32], ff=[96, 96, 96, 160, 160],
              act="gelu", rope=rope, embedding_scale=8.0, window=11, windowed=windowed, logit_cap=6.0, scale=1.0,
              value_norm=True, **more)
    for key, value in {"attention.key_length": 32, "attention.value_length": 32, "attention.key_length_swa": 16,
                       "attention.value_length_swa": 16, "attention.sliding_window": 11,
                       "attention.sliding_window_pattern": windowed,
                       "attention.shared_kv_layers": len(more.get("shares", [])),
                       "embedding_length_per_layer_input": more.get("beside", 0), "final_logit_softcapping": 6.0,
                       "rope.freq_base": 1000000.0, "rope.freq_base_swa": 10000.0, "rope.dimension_count": 32,
                       "rope.dimension_count_swa": 16}.items():
        m.set(key, value)
    m.weights["rope_freqs.weight"] = np.array([1.0] * 6 + [1e30] * 10)
    if "experts" in more:
        set_experts(m, **more["experts"])
    if "beside" in more:
        m.matrix("per_layer_token_embd", VOCABULARY, 5 * 32, 1.0)
        m.matrix("per_layer_model_proj", 5 * 32, WIDTH, 1.0)
        m.norm("per_layer_proj_norm", 32)
    for i in range(5):
        m.layer(i, qk_norm=True, after=True)
        p = f"blk.{i}."
        if "beside" in more:
            m.matrix(p + "inp_gate", 32, WIDTH)
            m.matrix(p + "proj", WIDTH, 32)
            m.norm(p + "post_norm")
        m.vector(p + "layer_output_scale.weight", 1, 0.8, 0.1)
        gone = ["attn_k.weight", "attn_v.weight", "attn_k_norm.weight"] if i in more.get("shares", []) else []
        gone = ["attn_v.weight"] if i == 2 else gone
        for part in gone:
            del m.weights[p + part]
    return m.end()


def set_experts(m, count, used, width, shared=None, **_):
    m.set("expert_count", count)
    m.set("expert_used_count", used)
    m.set("expert_feed_forward_length", width)
    if shared:
        m.set("expert_shared_feed_forward_length", shared)


@architecture
def qwen3moe(name):
    m = Model(name, "qwen3moe", 3, rope=one_rope, head=32, base=1000000.0,
              experts=dict(count=7, used=3, width=32, normalised=True))
    m.set("rope.freq_base", 1000000.0)
    set_experts(m, **m.h["experts"])
    for i in range(3):
        m.layer(i, qk_norm=True)
    return m.end()


@architecture
def qwen2moe(name):
    m = Model(name, "qwen2moe", 3, rope=one_rope, experts=dict(count=6, used=2, width=64, shared=96, normalised=False))
    set_experts(m, **m.h["experts"])
    for i in range(3):
        m.layer(i, QKV)
    return m.end(tied=False)


@architecture
def olmoe(name):
    m = Model(name, "olmoe", 3, rope=one_rope, kv_heads=4, ff=64,
              experts=dict(count=6, used=3, width=64, normalised=False))
    m.set("expert_count", 6)
    m.set("expert_used_count", 3)
    for i in range(3):
        m.layer(i, qk_norm="row")
    return m.end(tied=False)


@architecture
def mixtral(name):
    m = Model(name, "llama", 3, style="neighbours", rope=one_rope, base=1000000.0, ff=64,
              experts=dict(count=5, used=2, width=64, normalised=True))
    for key, value in {"rope.freq_base": 1000000.0, "rope.dimension_count": 16, "expert_count": 5,
                       "expert_used_count": 2}.items():
        m.set(key, value)
    for i in range(3):
        m.layer(i)
    return m.end(tied=False)


@architecture
def gpt_oss(name):
    # The ramp has fractional ends, llama.cpp's has whole ones; with these numbers it is from 5 to 11.
    factor, original, base = 8.0, 3611, 10321.576171875

    def rope(e):
        return yarn(frequencies(base, 32), base, factor, original, 32.0, 1.0, whole=False), 0.1 * np.log(factor) + 1
    m = Model(name, "gpt-oss", 4, head=32, rope=rope, window=9, windowed=[True, False] * 2, sinks=True, act="clamped",
              ffn_norm="post_attention_norm",
              experts=dict(count=6, used=2, width=64, normalised=True, spread=4.0, biased=True))
    for key, value in {"rope.freq_base": base, "rope.scaling.type": "yarn", "rope.scaling.factor": factor,
                       "rope.scaling.original_context_length": original, "attention.sliding_window": 9}.items():
        m.set(key, value)
    set_experts(m, **m.h["experts"])
    for i in range(4):
        m.layer(i, QKV + ["attn_output"])
    return m.end(tied=False)


def hybrid(name, architecture, grouped=False, **more):
    """Qwen3-Next and Qwen3.5: layers of Gated DeltaNet, every third with attention, and a nextn layer."""
    m = Model(name, architecture, 5, rope=one_rope, head=32, rotated=8, base=1000000.0, attention_gate=True,
              ffn_norm="post_attention_norm", delta=dict(keys=2, values=4, size=16, taps=4, grouped=grouped), **more)
    for key, value in {"rope.freq_base": 1000000.0, "rope.dimension_sections": [2, 1, 1, 0], "ssm.conv_kernel": 4,
                       "ssm.inner_size": 64, "ssm.state_size": 16, "ssm.time_step_rank": 4, "ssm.group_count": 2,
                       "full_attention_interval": 3, "block_count": 6, "nextn_predict_layers": 1}.items():
        m.set(key, value)
    if "experts" in more:
        set_experts(m, **more["experts"])
    for i in range(5):
        m.layer(i, qk_norm=True, mixer=None if i % 3 == 2 else m.gated_delta)
    m.layer(5, qk_norm=True)
    m.matrix("blk.5.nextn.eh_proj", WIDTH, 2 * WIDTH)
    m.norm("blk.5.nextn.enorm")
    m.norm("blk.5.nextn.hnorm")
    m.norm("blk.5.nextn.shared_head_norm")
    return m.end(tied=False)


@architecture
def qwen35(name):
    return hybrid(name, "qwen35")


@architecture
def qwen35moe(name):
    return hybrid(name, "qwen35moe", experts=dict(count=5, used=2, width=32, shared=64, normalised=True))


@architecture
def qwen3next(name):
    return hybrid(name, "qwen3next", grouped=True,
                  experts=dict(count=6, used=3, width=32, shared=32, normalised=True))


@architecture
def lfm2(name):
    m = Model(name, "lfm2", 5, rope=one_rope, base=1000000.0, taps=3, output_norm="token_embd_norm",
              kv_heads=[0, 2, 0, 0, 1])
    m.set("rope.freq_base", 1000000.0)
    m.set("shortconv.l_cache", 3)
    for i in range(5):
        m.layer(i, qk_norm=True, mixer=None if m.h["kv_heads"][i] else m.short_conv)
    return m.end()


@architecture
def rwkv7(name):
    ranks = dict(w=32, a=32, v=32, g=64)
    m = Model(name, "rwkv7", 3, rms=False, head=32, ff=128, heads=2, ranks=ranks)
    for key in "attention.head_count_kv", "attention.key_length", "attention.value_length":
        m.keys.pop("rwkv7." + key, None)
    m.set("attention.head_count", 0)
    m.set("wkv.head_size", 32)
    for key, part in {"decay": "w", "iclr": "a", "value_residual_mix": "v", "gate": "g"}.items():
        m.set(f"attention.{key}_lora_rank", ranks[part])
    m.norm("token_embd_norm")
    for i in range(3):
        m.rwkv(i)
    return m.end(tied=False)


def theirs(program, path, context, tokens):
    command = [program, str(path), str(context), *map(str, tokens)]
    raw = subprocess.run(command, capture_output=True)
    if raw.returncode:
        sys.exit(f"{path}: {raw.stderr.decode()}")
    return np.frombuffer(raw.stdout, np.float32).reshape(len(tokens), -1).astype(np.float64)


def largest(exact):
    order = np.argsort(-exact, axis=1)[:, :TOP]
    return [[[int(i), float(np.float32(row[i]))] for i in top] for row, top in zip(exact, order)]


def write_nextn(name, exact, tokens):
    """Writes the logits of the nextn layer, if the model has one: at each position those of the token after the next.
    The last row continues from the layer's own draft and its hidden state."""
    if f"blk.{exact.m.layers}.nextn.eh_proj.weight" not in exact.w:
        return
    before = exact.hidden(tokens)[:-1]
    made = exact.nextn(before, tokens[1:])
    logits = exact.output(made)
    draft = int(logits[-1].argmax())
    further = exact.nextn(np.concatenate([before, made[-1:]]), tokens[1:] + [draft])[-1:]
    judged = {"tokens": tokens, "largest": largest(np.concatenate([logits, exact.output(further)])), "guess": draft}
    (HERE / f"{name}-nextn.json").write_text(json.dumps(judged, separators=(",", ":")) + "\n")


def error(exact, logits):
    order = np.argsort(-exact, axis=1)[:, :TOP]
    off = np.take_along_axis(logits - exact, order, 1)
    return {"rms": float(np.sqrt((off ** 2).mean())), "max": float(np.abs(off).max())}


def drawn(name, program, folder):
    """Writes the errors with quantised weights of DRAWS sequences. They are random draws, because each engine rounds
    activations in its own way."""
    model = ALL[name](name)
    context = model.h["contexts"][0]
    random = np.random.default_rng([zlib.crc32(name.encode()), 1])
    sequences = random.integers(0, VOCABULARY, (DRAWS, TOKENS)).tolist()
    kinds = {"Q8_0": None} | ({"MXFP4_MOE": Type.MXFP4} if name == "gpt-oss" else {})
    judged = {"tokens": sequences, "context": context}
    for kind, experts in kinds.items():
        path = folder / f"drawn-{kind}.gguf"
        stored = model.write(path, Type.Q8_0, **({"experts": experts} if experts else {}))
        exact = Exact(model, stored, context)
        all_exact, off = [], []
        for tokens in sequences:
            logits = exact.logits(tokens)
            order = np.argsort(-logits, axis=1)[:, :TOP_DRAWN]
            off.append(np.take_along_axis(theirs(program, path, context, tokens) - logits, order, 1))
            all_exact.append([[[int(i), float(f"{row[i]:.6g}")] for i in top] for row, top in zip(logits, order)])
        off = np.array(off)
        judged[kind] = {"largest": all_exact,
                        "llama_cpp": {"rms": np.sqrt((off ** 2).mean((1, 2))).tolist(), "max": float(np.abs(off).max())}}
        print(name, "drawn", kind, judged[kind]["llama_cpp"], flush=True)
    (HERE / f"{name}-drawn.json").write_text(json.dumps(judged, separators=(",", ":")) + "\n")


def main():
    root = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        program = folder / "logits"
        lib = root / "build" / "bin"
        subprocess.run(["c++", "-O1", "-o", program, HERE / "logits.cpp", f"-I{root}/include", f"-I{root}/ggml/include",
                        f"-L{lib}", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{lib}"], check=True)
        for name in sys.argv[2:] or ALL:
            model = ALL[name](name)
            tokens = model.random.integers(0, VOCABULARY, TOKENS).tolist()
            paths = {"F16": HERE / f"{name}.gguf", "F32": folder / "f32.gguf"}
            stored = {kind: model.write(path, Type[kind]) for kind, path in paths.items()}
            runs = []
            for context in model.h["contexts"]:
                whole = Exact(model, stored["F32"], context)
                exact = whole.logits(tokens)
                write_nextn(name, whole, tokens)
                of_kinds = {kind: error(exact, theirs(program, path, context, tokens)) for kind, path in paths.items()}
                runs.append({"context": context, "plain": {"largest": largest(exact), "llama_cpp": of_kinds}})
                print(name, context, {k: f"{e['rms']:.2e}" for k, e in of_kinds.items()},
                      f"logits to {np.abs(exact).max():.1f}", flush=True)
            text = json.dumps({"tokens": tokens, "runs": runs}, separators=(",", ":"))
            (HERE / f"{name}.json").write_text(text + "\n")
            drawn(name, program, folder)


if __name__ == "__main__":
    main()
