#!/usr/bin/env python3
"""Compares decode on the CPU with llama.cpp, for every architecture and weight type that both support.

    decode.py ORINCTL LLAMA_CPP [NAME...]

ORINCTL is a release build, LLAMA_CPP a folder with llama-bench. Needs numpy and gguf from PyPI. NAME is a row,
`types` or `architectures`; default: all rows. Prints a row as soon as it is measured:

- median tokens per second of both engines;
- the median ratio of the pairs, with the least and the greatest;
- bytes of weights (as in the file) and KV cache that a token reads;
- the share of the memory bandwidth, which `orinctl bench` measures before and after its tokens. Only turns count whose
  two measurements are within a tenth of each other: the bandwidth of a shared machine changes.

Environment: ROUNDS (5) pairs in turn, TOKENS (64) per turn, THREADS (2). Models are made in FOLDER (default: the folder
for temporary files), one at a time, up to 5 GB.

A weight type fills all matrices of Llama 3.2 1B's shape, cut to 8 layers: blocks of random bytes with scales of a usual
size. Architectures are `orinctl`'s synthetic models, or models of `tests/data/architectures/make.py` in the sizes of a
published model, cut to three to six layers, in Q4_K and Q6_K.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import numpy as np
import gguf
from gguf import GGMLQuantizationType as Type
from gguf.constants import GGML_QUANT_SIZES

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests/data/architectures"))
import make

ROUNDS, TOKENS, THREADS = (int(os.environ.get(name, n)) for name, n in [("ROUNDS", 5), ("TOKENS", 64), ("THREADS", 2)])
FOLDER = os.environ.get("FOLDER", tempfile.gettempdir())

# Offsets of a block's f16 scales. IQ1_M: the byte with a scale's upper bits. MXFP4: the exponent.
SCALES = {
    Type.Q8_0: [0], Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.IQ4_NL: [0],
    Type.Q2_K: [80, 82], Type.Q3_K: [108], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208], Type.IQ4_XS: [0],
    Type.IQ3_S: [0], Type.IQ3_XXS: [0], Type.IQ2_S: [0], Type.IQ2_XS: [0], Type.IQ2_XXS: [0], Type.IQ1_S: [0],
    Type.TQ1_0: [52], Type.TQ2_0: [64], Type.IQ1_M: 55, Type.MXFP4: 0,
}
PLAIN = [Type.F32, Type.F16, Type.BF16]

# Synthetic models of `orinctl`: all layers, or `@N` layers to fit memory and disk.
SYNTHETIC = [
    "llama-3.2-1b:q4_k_m", "qwen3-1.7b:q4_k_m", "qwen2.5-1.5b:q4_k_m", "smollm3-3b:q4_k_m",
    "gemma3-4b:q4_0", "qwen3-30b-a3b:q4_k_m@8", "gpt-oss-20b:mxfp4@8",
]

# Models of make.py: width, hyperparameters and metadata of the published model that replace those of the small one.
DELTA = dict(keys=16, values=32, size=128, taps=4)
OF_DELTA = {"ssm.inner_size": 4096, "ssm.state_size": 128, "ssm.time_step_rank": 32, "ssm.group_count": 16,
            "rope.dimension_sections": [11, 11, 10, 0], "rope.dimension_count": 64}
OF_GEMMA4 = {"attention.key_length": 512, "attention.value_length": 512, "attention.key_length_swa": 256,
             "attention.value_length_swa": 256, "rope.dimension_count": 512, "rope.dimension_count_swa": 256}
MADE = {
    # Phi-3 mini, Ministral 3 3B, Qwen1.5 MoE A2.7B, OLMoE 1B-7B, Phi-2, GPT-2 large, Granite 3.3 2B, LFM2 1.2B
    "phi3": (3072, dict(heads=32, kv_heads=32, head=96, rotated=96, ff=8192), {}),
    "mistral3": (3072, dict(heads=32, kv_heads=8, head=128, ff=9216), {"rope.dimension_count": 128}),
    "qwen2moe": (2048, dict(heads=16, kv_heads=16, head=128, ff=5632,
                            experts=dict(count=60, used=4, width=1408, shared=5632)), {}),
    "olmoe": (2048, dict(heads=16, kv_heads=16, head=128, ff=1024, experts=dict(count=64, used=8, width=1024)), {}),
    "phi2": (2560, dict(heads=32, kv_heads=32, head=80, ff=10240, rotated=32), {}),
    "gpt2": (1280, dict(heads=20, kv_heads=20, head=64, ff=5120), {}),
    "granite": (2048, dict(heads=32, kv_heads=8, head=64, ff=8192), {"rope.dimension_count": 64}),
    "lfm2": (2048, dict(heads=32, kv_heads=[0, 8, 0, 0, 8], head=64, ff=8192), {}),
    # Gemma 2B, Gemma 2 2B, Gemma 4's E2B and 26B-A4B
    "gemma": (2048, dict(heads=8, kv_heads=1, head=256, ff=16384), {}),
    "gemma2": (2304, dict(heads=8, kv_heads=4, head=256, ff=9216), {}),
    "gemma4": (1536, dict(heads=8, kv_heads=[1] * 5, head=[256, 256, 512, 256, 512], ff=[6144] * 3 + [12288] * 2),
               OF_GEMMA4),
    "gemma4-moe": (2816, dict(heads=16, kv_heads=[8, 8, 2, 8, 2], head=[256, 256, 512, 256, 512], ff=[2112] * 5,
                              experts=dict(count=128, used=8, width=704)), OF_GEMMA4),
    # RWKV-7 1.5B, Qwen3.5 4B and 35B-A3B, Qwen3-Next 80B-A3B with a quarter of its experts
    "rwkv7": (2048, dict(head=64, ff=8192, ranks=dict(w=96, a=96, v=64, g=256)),
              {"wkv.head_size": 64, "attention.decay_lora_rank": 96, "attention.iclr_lora_rank": 96,
               "attention.value_residual_mix_lora_rank": 64, "attention.gate_lora_rank": 256}),
    "qwen35": (2560, dict(heads=16, kv_heads=4, head=256, rotated=64, ff=9216, delta=DELTA), OF_DELTA),
    "qwen35moe": (2048, dict(heads=16, kv_heads=2, head=256, rotated=64, ff=512, delta=DELTA,
                             experts=dict(count=256, used=8, width=512, shared=512)), OF_DELTA),
    "qwen3next": (2048, dict(heads=16, kv_heads=2, head=256, rotated=64, ff=512, delta=DELTA,
                             experts=dict(count=128, used=10, width=512, shared=512)), OF_DELTA),
}
VOCABULARY = 65536


class Large(make.Model):
    """A model of make.py in other sizes, with shapes instead of weights."""

    sizes = {}

    def __init__(self, name, architecture, layers, **hyper):
        for key, value in self.sizes.items():
            hyper[key] = {**hyper.get(key, {}), **value} if isinstance(value, dict) else value
        super().__init__(name, architecture, layers, **hyper)
        self.set("attention.key_length", self.per_layer("head", 0))
        self.set("attention.value_length", self.per_layer("head", 0))

    def noise(self, shape, deviation, mean=0.0):
        return np.broadcast_to(np.float32(mean or 0.01), shape)

    def norm(self, name, n=None):
        super().norm(name, n or make.WIDTH)

    def matrix(self, name, *shape):
        self.weights[f"{name}.weight"] = np.broadcast_to(np.float32(0), [n for n in shape if isinstance(n, int)])


def blocks(kind, count):
    """`count` random blocks of a type, whose weights have a standard deviation of about 1/40."""
    random = np.random.default_rng(count)
    if kind in PLAIN:
        return gguf.quantize(random.normal(0, 0.025, (count, 1)).astype(np.float32), kind)
    made = random.integers(0, 256, (count, GGML_QUANT_SIZES[kind][1]), np.uint8)
    at = SCALES[kind]
    if at == 0 or at == 55:
        made[:, at] = {0: 120, 55: 0x10}[at]
        return made

    def scaled(by):
        for offset in at:
            made[:, offset:offset + 2] = np.frombuffer(np.float16(by).tobytes(), np.uint8)
        return np.sqrt((gguf.dequantize(made[:256], kind).astype(np.float64) ** 2).mean())
    scaled(0.025 / scaled(1.0))
    return made


def stored(kind, shape):
    """Bytes of a matrix: the same blocks, repeated."""
    block, size = GGML_QUANT_SIZES[kind]
    rows, columns = int(np.prod(shape[:-1])), shape[-1]
    data = np.resize(blocks(kind, 16381).view(np.uint8).reshape(-1), rows * columns // block * size)
    return data.reshape(*shape[:-1], columns // block * size)


def file_of(path, architecture, keys, weights, kind_of):
    """Writes a GGUF file with a vocabulary of unused tokens."""
    writer = gguf.GGUFWriter(path, architecture)
    rows = weights["token_embd.weight"].shape[0]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    letters = [chr(c) for c in [*range(33, 127), *range(161, 173), *range(174, 324)]]
    writer.add_token_list(letters + ["ab"] + [f"<unused{i}>" for i in range(rows - 257)])
    writer.add_token_types([1] * 257 + [5] * (rows - 257))
    writer.add_token_merges(["a b"])
    for key, value in keys.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string,
               list: writer.add_array}[type(value)]
        add(key, value)
    for name, values in weights.items():
        if np.ndim(values) < 2:
            writer.add_tensor(name, np.ascontiguousarray(values, np.float32))
        else:
            kind = Type.F32 if any(part in name for part in make.KEPT) else kind_of(name, values.shape)
            writer.add_tensor(name, stored(kind, values.shape), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def fitting(kind, shape):
    """What stands for a type whose blocks do not fill a row, as for llama.cpp's quantiser."""
    others = [kind, {Type.Q4_K: Type.Q5_0}.get(kind, Type.Q8_0), Type.F16]
    return next(other for other in others if shape[-1] % GGML_QUANT_SIZES[other][0] == 0)


def of_type(kind, path):
    make.WIDTH, make.VOCABULARY = 2048, 128256
    Large.sizes = dict(heads=32, kv_heads=8, head=64, ff=8192)
    model = Large("llama", "llama", 8, rope=None)
    model.set("rope.freq_base", 500000.0)
    model.set("rope.dimension_count", 64)
    for i in range(8):
        model.layer(i)
    model.end()
    file_of(path, "llama", model.keys, model.weights, lambda *_: kind)


def of_architecture(name, path):
    make.WIDTH, Large.sizes, keys = MADE[name]
    make.VOCABULARY, make.Model = VOCABULARY, Large
    model = make.ALL[name](name)
    for length in ("short", "long") if name == "phi3" else ():
        model.weights[f"rope_factors_{length}.weight"] = np.ones(48)
    if name.startswith("gemma4"):
        model.weights["rope_freqs.weight"] = np.array([1.0] * 64 + [1e30] * 192)
        wider = {"inp_gate": (256, make.WIDTH), "proj": (make.WIDTH, 256)}
        if "beside" in model.h:
            model.set("embedding_length_per_layer_input", 256)
            for part in model.weights:
                end = part.split(".")[-2]
                if part.startswith("blk.") and end in wider:
                    model.weights[part] = np.broadcast_to(np.float32(0), wider[end])
            for part, shape in {"per_layer_token_embd": (VOCABULARY, 5 * 256), "per_layer_proj_norm": (256,),
                                "per_layer_model_proj": (5 * 256, make.WIDTH)}.items():
                model.weights[part + ".weight"] = np.broadcast_to(np.float32(0.5), shape)
    if "experts" in model.h:
        make.of_experts(model, **model.h["experts"])
    for key, value in keys.items():
        model.set(key, value)

    def kind_of(tensor, shape):
        more = "ffn_down" in tensor or "attn_v" in tensor or tensor.startswith(("output.", "token_embd."))
        return fitting(Type.Q6_K if more else Type.Q4_K, shape)
    file_of(path, model.architecture, model.keys, model.weights, kind_of)


class Failed(Exception):
    pass


def output(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{command[0]} failed: {' '.join(done.stderr.split())[-300:]}")
    return done.stdout


def bench(orinctl, model, tokens):
    return [orinctl, "bench", "--private", "--backend", "cpu", "-t", str(THREADS), "-m", str(model), "-p", "0",
            "-n", str(tokens), "-r", "1"]


def ours(orinctl, model):
    report = json.loads(output([*bench(orinctl, model, TOKENS), "--json"]))
    row = report["rows"][0]
    read = row["weight_bytes_per_token"] + row["kv_bytes_per_token"]
    roof = report["roof"]
    steady = roof["lowest"] >= 0.9 * roof["bytes_per_second"]
    return row["tokens_per_second"]["median"], read, roof["bytes_per_second"] if steady else None


def theirs(llama_bench, file):
    run = [llama_bench, "-m", str(file), "-p", "0", "-n", str(TOKENS), "-r", "1", "-t", str(THREADS), "-fa", "1",
           "-ngl", "0", "-o", "json"]
    return json.loads(output(run))[0]["avg_ts"]


def measure(orinctl, llama_bench, file):
    """Measures both engines in turn; the order alternates. The file is in the page cache, since it was just written."""
    rows = []
    for turn in range(ROUNDS):
        if turn % 2:
            own, other = ours(orinctl, file), theirs(llama_bench, file)
        else:
            other, own = theirs(llama_bench, file), ours(orinctl, file)
        rows.append([*own, other])
    fast, other = (statistics.median(row[i] for row in rows) for i in (0, 3))
    ratios = sorted(a / b for a, _, _, b in rows)
    steady = [(100 * a * read / roof, roof / 1e9) for a, read, roof, _ in rows if roof]
    shares = ", ".join(f"{share:.0f} % of {roof:.0f}" for share, roof in sorted(steady, key=lambda turn: turn[1]))
    return (f"{fast:.1f} | {other:.1f} | {statistics.median(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}] "
            f"| {rows[0][1] / 1e6:.0f} | {shares or '-'}")


def files(orinctl):
    """Rows: name, group, and a function that writes the model into a folder."""
    for kind in [*PLAIN, *SCALES]:
        yield kind.name, "types", lambda folder, kind=kind: of_type(kind, folder / "model.gguf")
    for name in SYNTHETIC:
        yield name, "architectures", lambda _, name=name: output(bench(orinctl, f"synthetic:{name}", 1))
    for name in MADE:
        yield name, "architectures", lambda folder, name=name: of_architecture(name, folder / "model.gguf")


def main():
    orinctl, llama_cpp, *wanted = sys.argv[1:]
    rows = list(files(orinctl))
    if strange := set(wanted) - {word for name, group, _ in rows for word in (name, group)}:
        sys.exit(f"unknown row {', '.join(strange)}; rows: {', '.join(name for name, *_ in rows)}")
    print("| | orind, tok/s | llama.cpp, tok/s | ratio | MB per token | share of bandwidth, GB/s |")
    print("|---|---|---|---|---|---|")
    for name, group, make_it in rows:
        if wanted and not {name, group} & set(wanted):
            continue
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            folder = pathlib.Path(folder)
            os.environ["XDG_CACHE_HOME"] = str(folder)
            try:
                make_it(folder)
                file = max(folder.glob("**/*.gguf"), key=lambda file: file.stat().st_size)
                print(f"| {name} | {measure(orinctl, f'{llama_cpp}/llama-bench', file)} |", flush=True)
            except Failed as failed:
                print(f"| {name} | {failed} |", flush=True)


if __name__ == "__main__":
    main()
