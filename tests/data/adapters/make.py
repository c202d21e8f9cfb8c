#!/usr/bin/env python3
"""Generates tests/data/adapters: a LoRA adapter of seeded noise for tests/data/architectures/llama.gguf, written by
llama.cpp's converter, and llama.cpp's logits with it.

    make.py LLAMA_CPP

LLAMA_CPP is a folder with llama.cpp's sources and a build in `build/`. Needs torch, safetensors and transformers from
PyPI, and a C++ compiler. The adapter has the format of PEFT: rank 4, alpha 6, every matrix of a layer. llama.json has
the tokens of architectures/llama.json and, for each scale and position, llama.cpp's largest logits with an F16 cache.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
MODELS = HERE.parent / "architectures"
RANK, ALPHA, TOP = 4, 6, 12
SCALES = [1.0, -0.5]
MATRICES = {
    "self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64), "self_attn.v_proj": (32, 64), "self_attn.o_proj": (64, 64),
    "mlp.gate_proj": (96, 64), "mlp.up_proj": (96, 64), "mlp.down_proj": (64, 96),
}


def peft(base, adapter):
    """Writes the folders of a model's configuration and of an adapter for it."""
    config = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=64, num_hidden_layers=3,
                  num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=96, vocab_size=128,
                  max_position_embeddings=512, rms_norm_eps=1e-5, rope_theta=500000.0)
    (base / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(20261125)
    tensors = {}
    for layer in range(3):
        for name, (rows, columns) in MATRICES.items():
            for side, shape in [("A", (RANK, columns)), ("B", (rows, RANK))]:
                values = random.normal(0, 0.5 / np.sqrt(shape[1]), shape).astype(np.float32)
                tensors[f"base_model.model.model.layers.{layer}.{name}.lora_{side}.weight"] = torch.from_numpy(values)
    save_file(tensors, adapter / "adapter_model.safetensors")
    of = dict(peft_type="LORA", r=RANK, lora_alpha=ALPHA, target_modules=[n.split(".")[1] for n in MATRICES],
              base_model_name_or_path=str(base), task_type="CAUSAL_LM")
    (adapter / "adapter_config.json").write_text(json.dumps(of))


def main():
    llama = pathlib.Path(sys.argv[1]).resolve()
    tokens = json.loads((MODELS / "llama.json").read_text())["tokens"]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        base, adapter = folder / "base", folder / "adapter"
        base.mkdir(), adapter.mkdir()
        peft(base, adapter)
        out = HERE / "llama.gguf"
        subprocess.run([sys.executable, llama / "convert_lora_to_gguf.py", "--base", base, "--outtype", "f16",
                        "--outfile", out, adapter], check=True, env={"PYTHONPATH": str(llama / "gguf-py")})
        library = llama / "build" / "bin"
        subprocess.run(["c++", "-std=c++17", "-O1", MODELS / "logits.cpp", f"-I{llama}/include", f"-I{llama}/ggml/include",
                        f"-L{library}", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{library}", "-o", folder / "logits"],
                       check=True)
        runs = []
        for scale in SCALES:
            command = [folder / "logits", "--lora", out, scale, MODELS / "llama.gguf", 512, *tokens]
            raw = subprocess.run([str(part) for part in command], check=True, capture_output=True).stdout
            logits = np.frombuffer(raw, np.float32).reshape(len(tokens), -1)
            largest = [[[int(i), round(float(row[i]), 5)] for i in np.argsort(-row)[:TOP]] for row in logits]
            runs.append({"scale": scale, "largest": largest})
    lines = ",\n".join(json.dumps(run) for run in runs)
    (HERE / "llama.json").write_text(f'{{"tokens": {json.dumps(tokens)},\n"runs": [\n{lines}\n]}}\n')


main()
