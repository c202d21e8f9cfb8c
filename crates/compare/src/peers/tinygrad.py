"""tinygrad: its own GGUF reader and transformer (`tinygrad.llm`, before 0.12 `tinygrad.apps.llm`)."""
import os

ENVIRONMENT = {"cpu": "CPU", "cuda": "CUDA", "nv": "NV"}
os.environ["DEV"] = os.environ.get("DEV") or ENVIRONMENT[asked["device"]]
os.environ["CPU_COUNT"] = os.environ["THREADS"] = str(asked["threads"])

import importlib.metadata
import pathlib

from tinygrad import Device, Tensor, TinyJit, UOp, dtypes

try:
    from tinygrad.llm.model import Transformer
except ImportError:
    from tinygrad.apps.llm import Transformer


class Tinygrad:
    def __init__(self, asked):
        self.context = asked["context"]
        self.model, _ = Transformer.from_gguf(pathlib.Path(asked["model"]), self.context)
        self.jits = {}
        half = os.environ.get("HALF", "1") != "0"
        # tinygrad's own switch: weights widened once, or anew by every kernel that reads them.
        realized = os.environ.get("REALIZE", "0") != "0"
        self.facts = {
            "version": f"tinygrad {importlib.metadata.version('tinygrad')}",
            "device": asked["device"],
            "weights": ("f16" if half else "f32") if realized else asked["file_type"],
            "activations": "f32",
            "kv": "f16" if half else "f32",
            "threads": asked["threads"] if asked["device"] == "cpu" else None,
            "batch": CHUNK,
            "warmup": 1,
            "compiled": "TinyJit",
            "clock": "engine",
        }
        self.at = 0

    def logits(self, tokens, at):
        x = self.model.token_embd(tokens).float()
        for block in self.model.blk:
            x = block(x, at)
        return self.model.output(self.model.output_norm(x[:, -1:]))[:, -1, :].float()

    def run(self, ids, what):
        """One chunk; the position is a variable, so that one recording serves all."""
        key = (len(ids), what)
        if key not in self.jits:
            get = {"best": lambda l: l.argmax(-1), "all": lambda l: l.log_softmax(-1)}[what]
            self.jits[key] = TinyJit(lambda tokens, at: get(self.logits(tokens, at)).realize())
        at = UOp.variable("start_pos", 0, self.context - 1).bind(self.at)
        self.at += len(ids)
        return self.jits[key](Tensor([ids], dtype=dtypes.int32).contiguous().realize(), at)

    def reset(self):
        self.at = 0

    def chunks(self, ids, what):
        for begin in range(0, len(ids) - len(ids) % CHUNK, CHUNK):
            out = self.run(ids[begin : begin + CHUNK], what)
        for token in ids[len(ids) - len(ids) % CHUNK :]:
            out = self.run([token], what)
        return out

    def feed(self, ids):
        return int(self.chunks(ids, "best").item())

    def step(self, token):
        return int(self.run([token], "best").item())

    def distribution(self, ids, n):
        self.reset()
        found = self.chunks(ids, "all")[0].numpy()
        return [(int(i), float(found[i])) for i in found.argsort()[::-1][:n]]

    def memory(self):
        return {}


CHUNK = 32
main(Tinygrad)
