#!/usr/bin/env python3
"""Generates model files with one defect each, fuzz/corpus/gguf/lie-*.gguf, and tests/data/gguf/liars.tsv with the
expected error of each file, or `ok` for the valid models.

Needs numpy and gguf from PyPI. Run from the repository root.
"""

import pathlib

import numpy as np
import gguf

CORPUS = pathlib.Path("fuzz/corpus/gguf")
EXPECTED = pathlib.Path("tests/data/gguf/liars.tsv")
WIDTH, FF, ROWS, EXPERTS = 16, 32, 8, 3


def matrix(*shape):
    return np.full(shape, 0.125, np.float16)


def vector(*shape, value=1.0):
    return np.full(shape, value, np.float32)


def attention(head, *, rows=WIDTH):
    tensors = {f"attn_{part}.weight": matrix(WIDTH, WIDTH) for part in ("k", "v", "output")}
    return tensors | {"attn_q.weight": matrix(rows, WIDTH)} | {
        f"attn_{part}_norm.weight": vector(head) for part in ("q", "k") if head}


def feed_forward():
    return {f"ffn_{part}.weight": matrix(*shape) for part, shape in PARTS}


PARTS = [("gate", (FF, WIDTH)), ("up", (FF, WIDTH)), ("down", (WIDTH, FF))]
NORMS = {"attn_norm.weight": vector(WIDTH), "ffn_norm.weight": vector(WIDTH)}
NORMS_AROUND = {"attn_norm.weight": vector(WIDTH), "post_attention_norm.weight": vector(WIDTH)}


def llama():
    return {}, {"rope_freqs.weight": vector(WIDTH // 2)}, [NORMS | attention(0) | feed_forward()]


def moe():
    layer = NORMS_AROUND | attention(0) | {
        "attn_sinks.weight": vector(1), "ffn_gate_inp.weight": vector(EXPERTS, WIDTH, value=0.0)}
    for part, shape in PARTS:
        layer[f"ffn_{part}_exps.weight"] = matrix(EXPERTS, *shape)
        layer[f"ffn_{part}_exps.bias"] = vector(EXPERTS, shape[0], value=0.0)
    return {"expert_count": EXPERTS, "expert_used_count": 2, "expert_feed_forward_length": FF,
            "attention.sliding_window": 8}, {}, [layer]


def gemma3():
    layer = NORMS | attention(WIDTH) | feed_forward() | {
        "post_attention_norm.weight": vector(WIDTH), "post_ffw_norm.weight": vector(WIDTH)}
    return {"attention.key_length": WIDTH, "attention.value_length": WIDTH, "attention.sliding_window": 8,
            "attention.sliding_window_pattern": 2}, {}, [layer, layer]


def hybrid():
    """Gated DeltaNet with two heads of 8, then gated attention."""
    delta = NORMS_AROUND | feed_forward() | {
        "attn_qkv.weight": matrix(3 * WIDTH, WIDTH), "attn_gate.weight": matrix(WIDTH, WIDTH),
        "ssm_conv1d.weight": vector(3 * WIDTH, 4), "ssm_alpha.weight": matrix(2, WIDTH),
        "ssm_beta.weight": matrix(2, WIDTH), "ssm_dt.bias": vector(2), "ssm_a": vector(2, value=-1.0),
        "ssm_norm.weight": vector(8), "ssm_out.weight": matrix(WIDTH, WIDTH)}
    keys = {"attention.key_length": WIDTH, "attention.value_length": WIDTH, "ssm.conv_kernel": 4, "ssm.state_size": 8,
            "ssm.group_count": 2, "ssm.time_step_rank": 2, "ssm.inner_size": WIDTH, "full_attention_interval": 2}
    return keys, {}, [delta, NORMS_AROUND | attention(WIDTH, rows=2 * WIDTH) | feed_forward()]


def rwkv7():
    keys = {"attention.head_count": 0, "wkv.head_size": 8, "attention.layer_norm_epsilon": 1e-5}
    layer = {"time_mix_lerp_fused.weight": vector(6, 1, 1, WIDTH), "channel_mix_lerp_k.weight": vector(1, 1, WIDTH),
             "channel_mix_key.weight": matrix(FF, WIDTH), "channel_mix_value.weight": matrix(WIDTH, FF)}
    for norm in "attn_norm", "attn_norm_2", "time_mix_ln":
        layer |= {f"{norm}.weight": vector(WIDTH), f"{norm}.bias": vector(WIDTH)}
    for name, part in ("decay", "w"), ("iclr", "a"), ("value_residual_mix", "v"), ("gate", "g"):
        keys[f"attention.{name}_lora_rank"] = 4
        layer |= {f"time_mix_{part}1.weight": vector(4, WIDTH), f"time_mix_{part}2.weight": vector(WIDTH, 4)}
        if part != "g":
            layer[f"time_mix_{part}0.weight"] = vector(WIDTH)
    for part in "k_k", "k_a", "r_k":
        layer[f"time_mix_{part}.weight"] = vector(WIDTH)
    for part in "receptance", "key", "value", "output":
        layer[f"time_mix_{part}.weight"] = matrix(WIDTH, WIDTH)
    around = {f"{norm}.{part}": vector(WIDTH) for norm in ("token_embd_norm", "output_norm") for part in ("weight", "bias")}
    return keys, around | {"output.weight": matrix(ROWS, WIDTH)}, [layer, layer]


MODELS = {"llama": llama, "gpt-oss": moe, "gemma3": gemma3, "qwen35": hybrid, "rwkv7": rwkv7}


def model(architecture):
    """The architecture's metadata, and tensors."""
    own, around, layers = MODELS[architecture]()
    keys = {"context_length": 64, "embedding_length": WIDTH, "block_count": len(layers), "feed_forward_length": FF,
            "attention.head_count": 1, "attention.head_count_kv": 1, "attention.layer_norm_rms_epsilon": 1e-5} | own
    tensors = {"token_embd.weight": matrix(ROWS, WIDTH), "output_norm.weight": vector(WIDTH)} | around
    for number, layer in enumerate(layers):
        tensors |= {f"blk.{number}.{name}": values for name, values in layer.items()}
    return keys, tensors


def write(name, architecture, modify):
    keys, tensors = model(architecture)
    modify(keys, tensors)
    writer = gguf.GGUFWriter(CORPUS / f"lie-{name}.gguf", architecture)
    for key, value in keys.items():
        key = key if key.startswith("tokenizer.") else f"{architecture}.{key}"
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_uint32(key, value)
    for tensor, values in tensors.items():
        stored = isinstance(values, tuple)
        writer.add_tensor(tensor, values[1] if stored else values, raw_dtype=values[0] if stored else None)
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


def replaced(values, at, value):
    values = values.copy()
    values.flat[at] = value
    return values


def stored(shape, dtype, at, scale):
    """Blocks of zeroes, except for the bytes of one scale."""
    values = np.frombuffer(gguf.quants.quantize(np.zeros(shape, np.float32), dtype).tobytes(), np.uint8).copy()
    values[at:at + len(scale)] = list(scale)
    return dtype, values.reshape(*shape[:-1], -1)


def vocabulary(**more):
    """Byte-level BPE of eight tokens with a template; `more` overrides keys."""
    keys = {"model": "gpt2", "pre": "gpt-2", "tokens": ["a", "b", "c", "ab", "abc", "d", "e", "f"], "merges": ["a b", "ab c"],
            "eos_token_id": 7} | more
    keys = {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}
    keys["tokenizer.chat_template"] = keys.pop("tokenizer.ggml.chat_template", "{{ messages[0].content }}")
    return lambda of_model, _: of_model.update(keys)


F32 = np.float32
FILES = [
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
    ("windows", "gemma3", lambda *_: None, "ok"),
    ("pattern", "gemma3", key("attention.sliding_window_pattern", 0), "`gemma3.attention.sliding_window_pattern` is 0"),
    ("window-swa", "gemma3", key("attention.sliding_window", 0), "`gemma3.attention.sliding_window` is 0"),
    ("head-norm", "gemma3", tensor("blk.1.attn_k_norm.weight", vector(8)), "`blk.1.attn_k_norm.weight` has shape [8], [16]"),
    ("hybrid", "qwen35", lambda *_: None, "ok"),
    ("groups", "qwen35", key("ssm.group_count", 3), "`qwen35.ssm.group_count` is 3, a divisor of 2"),
    ("inner", "qwen35", key("ssm.inner_size", 24), "`qwen35.ssm.inner_size` is 24, 2 heads of 8"),
    ("interval", "qwen35", key("full_attention_interval", 3), "`blk.1.attn_qkv.weight` is missing"),
    ("taps", "qwen35", tensor("blk.0.ssm_conv1d.weight", vector(48, 3)), "`blk.0.ssm_conv1d.weight` has shape [48, 3], [48, 4]"),
    ("gated", "qwen35", tensor("blk.1.attn_q.weight", matrix(16, 16)), "`blk.1.attn_q.weight` has shape [16, 16], [32, 16]"),
    ("time-mix", "rwkv7", lambda *_: None, "ok"),
    ("wkv-heads", "rwkv7", key("wkv.head_size", 7), "`rwkv7.wkv.head_size` is 7, a divisor of 16"),
    ("rank", "rwkv7", key("attention.gate_lora_rank", 5), "`blk.0.time_mix_g1.weight` has shape [4, 16], [5, 16]"),
    ("value-mix", "rwkv7", without("blk.1.time_mix_v0.weight"), "`blk.1.time_mix_v0.weight` is missing"),
    ("nan", "llama", tensor("blk.0.ffn_up.weight", replaced(matrix(32, 16), 100, np.nan)),
     "`blk.0.ffn_up.weight`, element 100, is NaN"),
    ("infinite-norm", "llama", tensor("output_norm.weight", replaced(vector(16), 3, -np.inf)),
     "`output_norm.weight`, element 3, is -inf"),
    ("infinite-bias", "gpt-oss", tensor("blk.0.ffn_down_exps.bias", replaced(vector(3, 16), 47, np.inf)),
     "`blk.0.ffn_down_exps.bias`, element 47, is inf"),
    ("nan-scale", "llama", tensor("blk.0.ffn_down.weight", stored((16, 32), gguf.GGMLQuantizationType.Q8_0, 34 * 5, b"\0\x7e")),
     "`blk.0.ffn_down.weight`, element 160, is NaN"),
    ("infinite-scale", "gpt-oss",
     tensor("blk.0.ffn_down_exps.weight", stored((3, 16, 32), gguf.GGMLQuantizationType.Q4_0, 18 * 20, b"\0\x7c")),
     "`blk.0.ffn_down_exps.weight`, element 640, is "),
    ("exponent", "gpt-oss",
     tensor("blk.0.ffn_down_exps.weight", stored((3, 16, 32), gguf.GGMLQuantizationType.MXFP4, 17 * 47, b"\xff\x07")),
     "`blk.0.ffn_down_exps.weight`, element 1504, is inf"),
    ("vocabulary", "llama", vocabulary(), "ok"),
    ("merge", "llama", vocabulary(merges=["a b", "ab d"]),
     "merge 1 \"ab d\" (tokenizer.ggml.merges) needs the token \"abd\""),
    ("merge-part", "llama", vocabulary(merges=["g a"]), "merge 0 \"g a\" (tokenizer.ggml.merges) needs the token \"g\""),
    ("merge-syntax", "llama", vocabulary(merges=["ab"]), "merge 0 \"ab\" (tokenizer.ggml.merges) is not two tokens"),
    ("twice", "llama", vocabulary(tokens=["a", "b", "a"], merges=None, eos_token_id=2), "tokens 0 and 2 have the same text \"a\""),
    ("types", "llama", vocabulary(token_type=[1, 1]), "8 tokens but 2 token types (tokenizer.ggml.token_type)"),
    ("scores", "llama", vocabulary(model="llama", pre=None, merges=None, scores=[0.0, 1.0]),
     "8 tokens but 2 scores (tokenizer.ggml.scores)"),
    ("end", "llama", vocabulary(eos_token_id=8), "tokenizer.ggml.eos_token_id is 8, but the vocabulary has only 8 tokens"),
    ("template-syntax", "llama", vocabulary(chat_template="{% for m in messages %}"),
     "chat template (tokenizer.chat_template), line 1: "),
    ("template-loop", "llama",
     vocabulary(chat_template="{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"),
     "chat template (tokenizer.chat_template), line 1: stopped after "),
    ("template-calls", "llama", vocabulary(chat_template="{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
     "chat template (tokenizer.chat_template), line 1: "),
    ("template-output", "llama",
     vocabulary(chat_template="{% set a = namespace(s='x' * 4096) %}{% for i in range(4096) %}{{ a.s }}{% endfor %}"),
     "chat template (tokenizer.chat_template): stopped after "),
]

for name, architecture, modify, expected in FILES:
    write(name, architecture, modify)
EXPECTED.write_text("".join(f"lie-{name}\t{expected}\n" for name, _, _, expected in FILES))
