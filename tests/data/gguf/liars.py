#!/usr/bin/env python3
"""Makes files that lie about their architecture: fuzz/corpus/gguf/lie-*.gguf, each one change away from a model of a
layer, and tests/data/gguf/liars.tsv with what each is refused with, or `ok` for the models themselves.

Needs numpy and gguf from PyPI. Run from the repository root.
"""

import pathlib

import numpy as np
import gguf

CORPUS = pathlib.Path("fuzz/corpus/gguf")
EXPECTED = pathlib.Path("tests/data/gguf/liars.tsv")
WIDTH, ROWS, EXPERTS = 16, 8, 3


def model(architecture):
    """Keys under the architecture's name, and tensors."""
    keys = {"context_length": 64, "embedding_length": WIDTH, "block_count": 1, "feed_forward_length": 32,
            "attention.head_count": 1, "attention.head_count_kv": 1, "attention.layer_norm_rms_epsilon": 1e-5}
    ones = np.ones(WIDTH, np.float32)
    matrix = lambda *shape: np.full(shape, 0.125, np.float16)
    tensors = {"token_embd.weight": matrix(ROWS, WIDTH), "output_norm.weight": ones, "blk.0.attn_norm.weight": ones}
    for part in "q", "k", "v", "output":
        tensors[f"blk.0.attn_{part}.weight"] = matrix(WIDTH, WIDTH)
    if architecture == "llama":
        tensors["rope_freqs.weight"] = np.ones(WIDTH // 2, np.float32)
        tensors["blk.0.ffn_norm.weight"] = ones
        for part, shape in ("gate", (32, WIDTH)), ("up", (32, WIDTH)), ("down", (WIDTH, 32)):
            tensors[f"blk.0.ffn_{part}.weight"] = matrix(*shape)
        return keys, tensors
    keys |= {"expert_count": EXPERTS, "expert_used_count": 2, "expert_feed_forward_length": 32,
             "attention.sliding_window": 8}
    tensors["blk.0.attn_sinks.weight"] = np.zeros(1, np.float32)
    tensors["blk.0.post_attention_norm.weight"] = ones
    tensors["blk.0.ffn_gate_inp.weight"] = np.zeros((EXPERTS, WIDTH), np.float32)
    for part, shape in ("gate", (32, WIDTH)), ("up", (32, WIDTH)), ("down", (WIDTH, 32)):
        tensors[f"blk.0.ffn_{part}_exps.weight"] = matrix(EXPERTS, *shape)
        tensors[f"blk.0.ffn_{part}_exps.bias"] = np.zeros((EXPERTS, shape[0]), np.float32)
    return keys, tensors


def write(name, architecture, lie):
    keys, tensors = model(architecture)
    lie(keys, tensors)
    writer = gguf.GGUFWriter(CORPUS / f"lie-{name}.gguf", architecture)
    for key, value in keys.items():
        key = key if key.startswith("tokenizer.") else f"{architecture}.{key}"
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_uint32(key, value)
    for tensor, values in tensors.items():
        writer.add_tensor(tensor, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def key(name, value):
    return lambda keys, _: keys.update({name: value})


def tensor(name, values):
    return lambda _, tensors: tensors.update({name: values})


def without(name):
    return lambda _, tensors: tensors.pop(name)


F32 = np.float32
LIES = [
    ("llama", "llama", lambda *_: None, "ok"),
    ("mixture", "gpt-oss", lambda *_: None, "ok"),
    ("no-heads", "llama", key("attention.head_count", 0), "`llama.attention.head_count` is 0"),
    ("heads", "llama", key("attention.head_count", 3), "`llama.attention.key_length` is 5, a multiple of 16"),
    ("kv-heads", "llama", key("attention.head_count_kv", 2), "`llama.attention.head_count_kv` is 2, 1 to 1"),
    ("head-size", "llama", key("attention.key_length", 32), "`rope_freqs.weight` has shape [8], [16]"),
    ("layers", "llama", key("block_count", 2), "`blk.1.attn_norm.weight` is missing"),
    ("width", "llama", key("feed_forward_length", 64), "`blk.0.ffn_gate.weight` has shape [32, 16], [64, 16]"),
    ("context", "llama", key("context_length", 0), "`llama.context_length` is 0"),
    ("epsilon", "llama", key("attention.layer_norm_rms_epsilon", float("nan")),
     "`llama.attention.layer_norm_rms_epsilon` is NaN"),
    ("factors", "llama", tensor("rope_freqs.weight", np.full(8, np.nan, F32)), "`rope_freqs.weight` is a tensor with"),
    ("tokens", "llama", key("tokenizer.ggml.tokens", [str(i) for i in range(ROWS + 1)]),
     "`tokenizer.ggml.tokens` is 9 tokens, at most 8"),
    ("norm-type", "llama", tensor("output_norm.weight", np.ones(16, np.float16)), "`output_norm.weight` is F16, F32"),
    ("unknown", "llama", tensor("blk.0.attn_sinks.weight", np.zeros(1, F32)), "`blk.0.attn_sinks.weight` is not part"),
    ("no-experts", "gpt-oss", key("expert_count", 0), "`gpt-oss.expert_count` is 0"),
    ("experts", "gpt-oss", key("expert_count", 4), "`blk.0.ffn_gate_inp.weight` has shape [3, 16], [4, 16]"),
    ("chosen", "gpt-oss", key("expert_used_count", 4), "`gpt-oss.expert_used_count` is 4, 1 to 3"),
    ("router", "gpt-oss", tensor("blk.0.ffn_gate_inp.weight", np.zeros((3, 8), F32)),
     "`blk.0.ffn_gate_inp.weight` has shape [3, 8], [3, 16]"),
    ("fewer-experts", "gpt-oss", tensor("blk.0.ffn_up_exps.weight", np.zeros((2, 32, 16), np.float16)),
     "`blk.0.ffn_up_exps.weight` has shape [2, 32, 16], [3, 32, 16]"),
    ("missing-experts", "gpt-oss", without("blk.0.ffn_down_exps.weight"), "`blk.0.ffn_down_exps.weight` is missing"),
    ("expert-bias", "gpt-oss", tensor("blk.0.ffn_down_exps.bias", np.zeros((3, 32), F32)),
     "`blk.0.ffn_down_exps.bias` has shape [3, 32], [3, 16]"),
    ("window", "gpt-oss", key("attention.sliding_window", 0), "`gpt-oss.attention.sliding_window` is 0"),
    ("sinks", "gpt-oss", tensor("blk.0.attn_sinks.weight", np.zeros(2, F32)),
     "`blk.0.attn_sinks.weight` has shape [2], [1]"),
]

for name, architecture, lie, expected in LIES:
    write(name, architecture, lie)
EXPECTED.write_text("".join(f"lie-{name}\t{expected}\n" for name, _, _, expected in LIES))
