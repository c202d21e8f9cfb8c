#!/usr/bin/env python3
"""Generates `llama-bpe.gguf` and its vectors in `vectors.json`, from llama.cpp's `ggml-vocab-llama-bpe.gguf`.

    make.py ggml-vocab-llama-bpe.gguf more.json

`more.json` has additional texts with llama.cpp's ids, with and without parsed special tokens. The vocabulary is reduced to
bytes, special tokens, and the tokens that occur in one of the texts. A merge whose result does not occur in a text can
never be applied to it, so the ids stay those of the full vocabulary; `original_ids` lists them. Hugging Face's
`tokenizers` (pip install tokenizers) must give the same ids as llama.cpp. `qwen2.py` does the same for Qwen2.
"""

import json
import pathlib
import struct
import sys

from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

HERE = pathlib.Path(__file__).parent
U32, I32, F32, BOOL, STR, ARRAY = 4, 5, 6, 7, 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
CONTROL = 3

# As published with the models, which differ in the number of digits in a group.
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def read(data):
    """Reads the metadata of a GGUF file."""
    at = 4

    def take(fmt):
        nonlocal at
        values = struct.unpack_from("<" + fmt, data, at)
        at += struct.calcsize("<" + fmt)
        return values

    def value(kind):
        nonlocal at
        if kind == ARRAY:
            of, length = take("IQ")
            return [value(of) for _ in range(length)]
        if kind == STR:
            (length,) = take("Q")
            at += length
            return data[at - length:at].decode()
        if kind == F32:
            return take("f")[0]
        if kind == BOOL:
            return take("?")[0]
        at += SIZES[kind]
        return int.from_bytes(data[at - SIZES[kind]:at], "little", signed=kind == I32)

    _, _, keys = take("IQQ")
    return {value(STR): value(take("I")[0]) for _ in range(keys)}


def write(path, keys):
    """Writes a GGUF file without tensors."""
    text = lambda s: struct.pack("<Q", len(s.encode())) + s.encode()
    out = b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys))
    for name, value in keys.items():
        out += text(name)
        if isinstance(value, str):
            out += struct.pack("<I", STR) + text(value)
        elif isinstance(value, bool):
            out += struct.pack("<I?", BOOL, value)
        elif isinstance(value, int):
            out += struct.pack("<II", U32, value)
        elif isinstance(value, float):
            out += struct.pack("<If", F32, value)
        elif isinstance(value[0], str):
            out += struct.pack("<IIQ", ARRAY, STR, len(value)) + b"".join(map(text, value))
        elif isinstance(value[0], float):
            out += struct.pack(f"<IIQ{len(value)}f", ARRAY, F32, len(value), *value)
        else:
            out += struct.pack(f"<IIQ{len(value)}i", ARRAY, I32, len(value), *value)
    path.write_bytes(out)


def byte_level():
    """GPT-2's character for every byte."""
    table, other = {}, 0x100
    for byte in range(256):
        printable = 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or 0xAE <= byte
        table[byte] = chr(byte) if printable else chr(other)
        other += not printable
    return table


def tokenizer(keys, specials):
    """Hugging Face's tokeniser for a full vocabulary."""
    vocabulary = {token: i for i, token in enumerate(keys["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in keys["tokenizer.ggml.merges"]]
    result = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=True))
    split = pre_tokenizers.Split(Regex(PATTERN.replace("DIGITS", "{1,3}")), "isolated")
    result.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    result.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in specials])
    return lambda text: result.encode(text, add_special_tokens=False).ids


def write_vectors(vectors):
    lines = ",\n".join(
        f' "{name}": [\n' + ",\n".join("  " + json.dumps(case) for case in cases) + "\n ]"
        for name, cases in vectors.items())
    (HERE / "vectors.json").write_text("{\n" + lines + "\n}\n")


def main():
    source = pathlib.Path(sys.argv[1])
    keys = read(source.read_bytes())
    tokens, kinds = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    specials = [token for token, kind in zip(tokens, kinds) if kind == CONTROL]
    plain, special = ([tokenizer(keys, s) for s in ([], specials)])

    texts = pathlib.Path(f"{source}.inp").read_text().split("\n__ggml_vocab_test__\n")[:-1]
    ids = [[int(i) for i in line.split()] for line in
           pathlib.Path(f"{source}.out").read_text().splitlines()]
    cases = [{"text": text, "special": known} for text, known in zip(texts, ids, strict=True)]
    cases += json.loads(pathlib.Path(sys.argv[2]).read_text())["llama-bpe"]
    vectors = json.loads((HERE / "vectors.json").read_text()) | {"llama-bpe": []}
    for case in cases:
        text = case["text"]
        assert special(text) == case["special"], (text, special(text), case["special"])
        assert plain(text) == case.get("plain", plain(text)), text
        vectors["llama-bpe"].append(
            {"text": text, "special": case["special"], "plain": plain(text)})

    table = byte_level()
    seen = ["".join(table[byte] for byte in case["text"].encode()) for case in cases]
    occurs = lambda token: len(token) == 1 or any(token in text for text in seen)
    kept = [i for i, token in enumerate(tokens) if kinds[i] == CONTROL or occurs(token)]
    merges = [m for m in keys["tokenizer.ggml.merges"] if occurs(m.replace(" ", ""))]
    write(HERE / "llama-bpe.gguf", {
        "general.architecture": keys["general.architecture"],
        "tokenizer.ggml.model": keys["tokenizer.ggml.model"],
        "tokenizer.ggml.pre": keys["tokenizer.ggml.pre"],
        "tokenizer.ggml.tokens": [tokens[i] for i in kept],
        "tokenizer.ggml.token_type": [kinds[i] for i in kept],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": kept.index(keys["tokenizer.ggml.bos_token_id"]),
        "tokenizer.ggml.eos_token_id": kept.index(keys["tokenizer.ggml.eos_token_id"]),
        "original_ids": kept,
    })
    write_vectors(vectors)


if __name__ == "__main__":
    main()
