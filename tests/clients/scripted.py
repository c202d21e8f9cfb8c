"""Writes a GGUF model that says given texts, whatever it is asked.

    scripted.py OUT.gguf SCRIPT.json

SCRIPT.json is a list of texts. The model answers a conversation with tools and N tool results by text N, or by the
last one; without tools it says "ok". A text may be a tool call in Hermes' format:
`<tool_call>{"name": .., "arguments": ..}</tool_call>`.

The chat template counts the results and ends with one control token. Before it are the beginnings of calls and results,
because the daemon rewrites conversations for templates that drop them. Each token predicts the next piece of its text:
layers add nothing, and the output row of a piece is the embedding of the token before it.
"""

import json
import random
import struct
import sys

WIDTH, HEADS, CONTEXT = 256, 4, 1 << 17
PIECE = 12  # least characters of a piece
NORMAL, CONTROL = 1, 3


def byte_letters():
    """GPT-2's letter for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [byte for byte in range(256) if byte not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(other)}}


LETTERS = byte_letters()


class Vocabulary:
    def __init__(self):
        self.texts = list(LETTERS[b] for b in range(256))
        self.types = [NORMAL] * 256
        self.before = {}  # piece: tokens that predict it

    def add(self, text, kind):
        self.texts.append(text)
        self.types.append(kind)
        return len(self.texts) - 1

    def chain(self, start, text, end):
        """Pieces of a text, each new to the vocabulary."""
        token = self.add(start, CONTROL)
        letters = "".join(LETTERS[b] for b in text.encode())
        known = set(self.texts)
        while letters:
            sizes = range(PIECE, len(letters) + 1) if len(letters) > PIECE else [len(letters)]
            # A rest that is too short to be new belongs to the last piece.
            size = next((n for n in sizes if letters[:n] not in known and len(letters) - n not in range(1, PIECE)), None)
            if size is None:
                sys.exit(f"{text!r} ends like an earlier text; change a word")
            piece = self.add(letters[:size], NORMAL)
            known.add(letters[:size])
            self.before.setdefault(piece, []).append(token)
            token, letters = piece, letters[size:]
        self.before.setdefault(end, []).append(token)


def template(count):
    turns = "".join(f"{{%- elif n.results == {i} -%}}<|turn-{i}|>" for i in range(count - 1))
    return (
        '{#- <think></think> <tool_call>{"name": .., "arguments": ..}</tool_call> -#}{%- if enable_thinking -%}{%- endif -%}'
        "{%- set n = namespace(results=0) -%}"
        '{%- for m in messages -%}{%- if m.role == "tool" -%}{%- set n.results = n.results + 1 -%}{{- m.content[:40] -}}{%- endif -%}'
        '{%- for c in m.tool_calls or [] -%}{{- (c.function.arguments | tojson)[:40] -}}{%- endfor -%}{%- endfor -%}'
        "{%- if not tools -%}<|plain|>" + turns + f"{{%- else -%}}<|turn-{count - 1}|>{{%- endif -%}}"
    )


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(v):
    if isinstance(v, bool):
        return struct.pack("<IB", 7, v)
    if isinstance(v, int):
        return struct.pack("<II", 4, v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    if isinstance(v, str):
        return struct.pack("<I", 8) + string(v)
    body = b"".join(string(x) if isinstance(x, str) else struct.pack("<i", x) for x in v)
    return struct.pack("<IIQ", 9, 8 if v and isinstance(v[0], str) else 5, len(v)) + body


def main(out, script):
    texts = json.load(open(script))
    vocabulary = Vocabulary()
    vocabulary.add("ab", NORMAL)  # of the only merge; a vocabulary must have one
    end = vocabulary.add("<|end|>", CONTROL)
    vocabulary.chain("<|plain|>", "ok", end)
    for i, text in enumerate(texts):
        vocabulary.chain(f"<|turn-{i}|>", text, end)
    size = len(vocabulary.texts)
    seeded = random.Random(1)
    embedding = [[seeded.choice((-1.0, 1.0)) for _ in range(WIDTH)] for _ in range(size)]
    output = [[0.0] * WIDTH for _ in range(size)]
    for token, before in vocabulary.before.items():
        for other in before:
            output[token] = [a + b / 4 for a, b in zip(output[token], embedding[other])]
    flat = lambda rows: [x for row in rows for x in row]
    zeros, ones = [0.0] * (WIDTH * WIDTH), [1.0] * WIDTH
    tensors = {"token_embd.weight": ((WIDTH, size), flat(embedding)), "output.weight": ((WIDTH, size), flat(output))}
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        tensors[f"{name}.weight"] = ((WIDTH,), ones)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        tensors[f"blk.0.{name}.weight"] = ((WIDTH, WIDTH), zeros)
    metadata = {
        "general.architecture": "llama", "general.name": "scripted", "general.alignment": 32,
        "llama.block_count": 1, "llama.context_length": CONTEXT, "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": WIDTH, "llama.attention.head_count": HEADS, "llama.attention.head_count_kv": HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.dimension_count": WIDTH // HEADS,
        "llama.vocab_size": size,
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": vocabulary.texts,
        "tokenizer.ggml.token_type": vocabulary.types, "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": end, "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": template(len(texts)),
    }
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(string(k) + value(v) for k, v in metadata.items())
    data = b""
    for name, (shape, values) in tensors.items():
        head += string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        head += struct.pack("<IQ", 0, len(data))
        data += struct.pack(f"<{len(values)}f", *values)
        data += bytes(-len(data) % 32)
    with open(out, "wb") as file:
        file.write(head + bytes(-len(head) % 32) + data)


if __name__ == "__main__":
    main(*sys.argv[1:])
