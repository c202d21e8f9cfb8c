"""PyTorch: transformers reads the same GGUF file, which makes its weights half or full precision."""
import os

import torch
import transformers
from transformers import AutoModelForCausalLM, StaticCache


class PyTorch:
    def __init__(self, asked):
        torch.set_num_threads(asked["threads"])
        torch.set_grad_enabled(False)
        self.device = "cuda" if asked["device"] == "cuda" else "cpu"
        folder, file = os.path.split(asked["model"])
        kind = torch.bfloat16 if self.device == "cpu" else torch.float16
        kind = kind if asked["half"] else torch.float32
        self.model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=kind).to(self.device)
        self.context = asked["context"]
        self.cache = StaticCache(config=self.model.config, max_cache_len=self.context)
        self.forward = torch.compile(self.model.forward) if asked["compile"] else self.model.forward
        self.at = 0
        name = str(kind).removeprefix("torch.")
        self.facts = {
            "version": f"PyTorch {torch.__version__}, transformers {transformers.__version__}",
            "device": self.device,
            "weights": name,
            "activations": name,
            "kv": name,
            "threads": torch.get_num_threads() if self.device == "cpu" else None,
            "flash_attention": None,
            "warmup": 1,
            "compiled": "torch.compile" if asked["compile"] else None,
            "built_for": sets() if self.device == "cpu" else sorted(torch.cuda.get_arch_list()),
            "clock": "engine",
        }

    def reset(self):
        self.cache.reset()
        self.at = 0

    def logits(self, ids):
        tokens = torch.tensor([ids], device=self.device)
        places = torch.arange(self.at, self.at + len(ids), device=self.device)[None]
        out = self.forward(input_ids=tokens, position_ids=places, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        self.at += len(ids)
        return out.logits[0, -1]

    def feed(self, ids):
        return int(self.logits(ids).argmax())

    def step(self, token):
        return self.feed([token])

    def distribution(self, ids, n):
        self.reset()
        best = torch.log_softmax(self.logits(ids).float(), -1).topk(n)
        return [(int(i), float(p)) for p, i in zip(best.values, best.indices)]

    def memory(self):
        weights = sum(p.numel() * p.element_size() for p in self.model.parameters())
        gpu = torch.cuda.max_memory_reserved() if self.device == "cuda" else None
        return {"weights": weights, "gpu": gpu}


NAMES = {"AVX2": "avx2", "FMA": "fma3", "F16C": "f16c", "AVX512": "avx512_f", "AVX512_VNNI": "avx512_vnni", "AVX512_BF16": "avx512_bf16", "AMX_INT8": "amx_int8"}


def sets():
    """What its CPU kernels use here; None where this version does not tell."""
    has = getattr(torch.cpu, "get_capabilities", dict)()
    used = [name for name, key in NAMES.items() if has.get(key)]
    # oneDNN chooses at run time among all that it knows, unless it is told not to; ATen was built in levels.
    limited = "ONEDNN_MAX_CPU_ISA" in os.environ or not torch.backends.mkldnn.is_available()
    level = torch.backends.cpu.get_cpu_capability()
    if limited or level == "DEFAULT":
        levels = {"AVX2": ["AVX2", "FMA", "F16C"], "AVX512": ["AVX2", "FMA", "F16C", "AVX512"]}
        used = [name for name in used if name in levels.get(level, [])]
    return sorted(used) if has else None


main(PyTorch)
