#!/usr/bin/env python3
"""Generates `qwen2.gguf` and its vectors, from the vocabulary that Qwen publishes.

    qwen2.py qwen.tiktoken

The file is part of Alibaba's package dashscope (pip download --no-deps dashscope, Apache 2.0). The texts are those of
`llama-bpe` in `vectors.json`, and some with Qwen's special tokens. Ids are computed with tiktoken (pip install tiktoken),
which has no merges but joins the pair of the lowest rank. The vocabulary is reduced as in `make.py`.
"""

import base64
import json
import pathlib
import sys

import tiktoken

import make

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATS = ["<|im_start|>user\nName three primes.<|im_end|>\n<|im_start|>assistant\n", "a<|endoftext|><|im_end|>b"]


def merge(ranks, token):
    """The two tokens that the last merge to a token joins."""
    parts = [token[i:i + 1] for i in range(len(token))]
    while len(parts) > 2:
        joined = [ranks.get(a + b, len(ranks)) for a, b in zip(parts, parts[1:])]
        at = min(range(len(joined)), key=joined.__getitem__)
        parts[at:at + 2] = [parts[at] + parts[at + 1]]
    return parts


def main():
    lines = pathlib.Path(sys.argv[1]).read_bytes().split(b"\n")
    ranks = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in lines if line}
    specials = {token: len(ranks) + i for i, token in enumerate(SPECIALS)}
    encoding = tiktoken.Encoding(
        "qwen2", pat_str=make.PATTERN.replace("DIGITS", ""), mergeable_ranks=ranks, special_tokens=specials)

    vectors = json.loads((make.HERE / "vectors.json").read_text())
    texts = [case["text"] for case in vectors["llama-bpe"]] + CHATS
    vectors["qwen2"] = [
        {"text": text, "special": encoding.encode(text, allowed_special="all"),
         "plain": encoding.encode(text, disallowed_special=())} for text in texts]

    seen = [text.encode() for text in texts]
    occurs = lambda token: len(token) == 1 or any(token in text for text in seen)
    kept = sorted((token for token in ranks if occurs(token)), key=ranks.get)
    table = make.byte_level()
    word = lambda token: "".join(table[byte] for byte in token)
    make.write(make.HERE / "qwen2.gguf", {
        "general.architecture": "qwen2",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [word(token) for token in kept] + SPECIALS,
        "tokenizer.ggml.token_type": [1] * len(kept) + [make.CONTROL] * len(SPECIALS),
        "tokenizer.ggml.merges": [
            " ".join(map(word, merge(ranks, token))) for token in kept if len(token) > 1],
        "tokenizer.ggml.eos_token_id": len(kept) + SPECIALS.index("<|im_end|>"),
        "original_ids": [ranks[token] for token in kept] + list(specials.values()),
    })
    make.write_vectors(vectors)


if __name__ == "__main__":
    main()
