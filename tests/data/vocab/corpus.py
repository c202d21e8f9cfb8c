#!/usr/bin/env python3
"""Generates the corpus of the fuzz target `tokenizer`: small vocabularies of each algorithm, valid and damaged."""

import make

SPACE = "\u2581"
CORPUS = make.HERE.parents[2] / "fuzz" / "corpus" / "tokenizer"


def keys(model, tokens, kinds, **more):
    named = {f"tokenizer.ggml.{name}": value for name, value in more.items()}
    return {"general.architecture": "llama", "tokenizer.ggml.model": model, "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": kinds} | named


def main():
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    kinds = [2, 3, 3] + [6] * 256
    texts = [SPACE, "a", "b", "aa", SPACE + "a", SPACE * 2, "a" + SPACE + "b", "\n", "\n\n", "<think>", "<unused>"]
    tokens, kinds = pieces + texts, kinds + [1] * 9 + [4, 5]
    scores = [0.0] * 259 + [-float(i) for i in range(len(texts))]
    merges = ["a a", f"{SPACE} a", f"{SPACE} {SPACE}", "\n \n"]
    spm = keys("llama", tokens, kinds, scores=scores, bos_token_id=1, eos_token_id=2)
    gemma4 = keys("gemma4", tokens, kinds, merges=merges, bos_token_id=1)
    table = list(make.byte_level().values())
    bpe = keys("gpt2", table + ["aa", "Ġa", "<x>"], [1] * 258 + [3], merges=["a a", "Ġ a"], pre="tekken")
    files = {
        "scores": spm,
        "phi-3": spm | {"general.architecture": "phi3"},
        "merges": gemma4,
        "bpe": bpe,
        "no-bytes": keys("llama", texts, [1] * 9 + [4, 5], scores=scores[259:]),
        "few-scores": spm | {"tokenizer.ggml.scores": scores[:9]},
        "bad-score": spm | {"tokenizer.ggml.scores": [float("nan")] * len(scores)},
        "bad-byte": spm | {"tokenizer.ggml.tokens": ["<0xXX>" if t == "<0x41>" else t for t in tokens]},
        "bad-merge": gemma4 | {"tokenizer.ggml.merges": merges + ["a q"]},
    }
    CORPUS.mkdir(exist_ok=True)
    for name, file in files.items():
        make.write(CORPUS / f"{name}.gguf", file)


if __name__ == "__main__":
    main()
