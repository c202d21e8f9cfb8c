#!/usr/bin/env python3
"""Generates `families.json` and its vocabularies, from those that llama.cpp ships.

    families.py llama.cpp/models

Ids are llama.cpp's, by its Python binding (pip install llama-cpp-python), and those of Hugging Face's `tokenizers`
(pip install tokenizers) with the same vocabulary and the rules that the models' authors publish. If the two differ, a case
also has llama.cpp's ids as `llama_cpp`. `pieces` is a checksum (FNV-1a) of llama.cpp's bytes of each token, preceded by
their length. `decoded` is Hugging Face's text of the ids; for byte-level BPE it is those bytes joined, because Hugging Face
decodes added tokens as if they were in the byte-level alphabet.
Every pre-tokeniser is also tested with `trained.gguf`, a vocabulary trained on whole texts. Its tokens span words, which
reveals each place where text is split. `rwkv.gguf` has those tokens in the notation of RWKV's vocabularies; its ids are
computed by the rule itself (the longest token first), which this script implements. Vocabularies are reduced as in
`make.py`.
"""

import ctypes
import json
import pathlib
import sys
import tempfile

import llama_cpp
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import make

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SPACE = "\u2581"

TEXTS = [
    "École ÉCOLE éCOLE ПРИВЕТ Привет приВЕТ ΑΒΓδε ǅungla",
    "iPhone XMLHttpRequest GPUs' they'Re WE'VE l'été",
    "हिन्दी में é e\u0301a\u0300 ไทย น้ำ",
    "a/b//\n\n//c /usr/bin\n",
    "  \t  \u3000 x \u00a0\u00a0y\r\n\r\n  z",
    "…“quoted” ‘text’ —dash— ～wave～ １２３ｘｙｚ",
    "#include <stdio.h>\n@decorator $var %s ^caret",
    "日本語とEnglishとहिन्दी混ざった123テスト한국어９９",
    "\u0000\u0000 \u0000a\u200d\u200d \u200db",
    "\u2581 literal \u2581\u2581 block <0x0A> <0xFF>",
    "\n" * 40 + "x" + " " * 40 + "\n" * 3,
    "a" * 300,
    "Pneumonoultramicroscopicsilicovolcanoconiosis" * 8,
    "<s>a</s> b<unk>  c<pad>",
    "<|user|>\n Hi<|end|> \n<|assistant|>  Hello<|end|>\n",
    "<bos><|turn>user\nHi<turn|>\n<start_of_turn>model\n<unused0>",
    "<|endoftext|>x <|endoftext|>  y<fim_prefix>z<|fim_prefix|>",
    "<｜begin▁of▁sentence｜>User: hi<｜end▁of▁sentence｜>",
    "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Hi<|END_OF_TURN_TOKEN|>",
    "[INST] Hi [/INST] Hello </s><s>[INST]",
    ">>QUESTION<< x >>ANSWER<<",
    "🏴\u200d☠️ 🇩🇪🇫🇷 👨‍👩‍👧 ☺\ufe0f 𝕳𝖊𝖑𝖑𝖔 𓀀 \U000e0067",
]

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
CASES = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+END"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*END"
         r"|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LETTERS = (
    r"\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}"
    r"\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}"
    r"\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}"
    r"\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}"
    r"\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}"
    r"\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}"
    r"\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}"
    r"\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}"
    r"\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}"
    r"\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}"
    r"\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}"
    r"\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}"
    r"\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}"
    r"\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}"
    r"\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}"
    r"\x{1E900}-\x{1E943}]+")
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK3 = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
             r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
IDEOGRAPHS = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+"
PUNCTUATION = r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+"


def split(*patterns):
    """Isolates the matches of each pattern, then maps bytes."""
    return [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns] + [bytes_only()]


def bytes_only():
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def gpt2():
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


digits = lambda: pre_tokenizers.Digits(individual_digits=True)
three = lambda: pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")
RULES = {
    "gpt-2": lambda: [gpt2()],
    "mpt": lambda: [gpt2()],
    "olmo": lambda: [gpt2()],
    "falcon": lambda: [pre_tokenizers.Punctuation("contiguous"), gpt2(), three()],
    "starcoder": lambda: [digits(), gpt2()],
    "refact": lambda: [digits(), gpt2()],
    "command-r": lambda: [digits(), gpt2()],
    "smollm": lambda: [digits(), gpt2()],
    "lfm2": lambda: split(make.PATTERN.replace("DIGITS", "{1,3}")),
    "dbrx": lambda: split(make.PATTERN.replace("DIGITS", "{1,3}")),
    "stablelm2": lambda: split(make.PATTERN.replace("DIGITS", "")),
    "qwen35": lambda: split(QWEN35),
    "tekken": lambda: split(CASES.replace("END", "").replace("DIGITS", "")),
    "gpt-4o": lambda: split(CASES.replace("END", CONTRACTIONS + "?").replace("DIGITS", "{1,3}")),
    "deepseek-v3": lambda: split(r"\p{N}{1,3}", r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+", DEEPSEEK3),
    "deepseek-llm": lambda: split("[\r\n]", LETTERS, PUNCTUATION, r"\s+$", IDEOGRAPHS, r"\p{N}+"),
    "deepseek-coder": lambda: split("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", IDEOGRAPHS, r"\p{N}"),
}
WHOLE_WORDS = ["lfm2", "tekken"]
FAMILIES = ["llama-spm", "phi-3", "gemma-4", "gpt-2", "mpt", "falcon", "starcoder", "refact", "command-r", "qwen35",
            "deepseek-llm", "deepseek-coder"]


class LlamaCpp:
    """llama.cpp's tokeniser for a file."""

    def __init__(self, path):
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        assert self.model, path
        self.vocabulary = llama_cpp.llama_model_get_vocab(self.model)

    def ids(self, text, special):
        data = text.encode()
        room = (llama_cpp.llama_token * (len(data) + 16))()
        count = llama_cpp.llama_tokenize(self.vocabulary, data, len(data), room, len(room), False, special)
        assert count >= 0, text
        return list(room[:count])

    def piece(self, token):
        room = ctypes.create_string_buffer(1024)
        count = llama_cpp.llama_token_to_piece(self.vocabulary, token, room, len(room), 0, True)
        assert count >= 0, token
        return room.raw[:count]


def specials(keys, special):
    """The tokens that Hugging Face finds before anything else."""
    phi3 = keys["general.architecture"] == "phi3"
    strips = lambda token: phi3 and token not in ["<unk>", "<s>", "<|endoftext|>"]
    # A control token with any type, except in Gemma 4.
    ends = lambda token: token == "</s>" and keys["tokenizer.ggml.model"] != "gemma4"
    wanted = lambda token, kind: special if ends(token) or kind in (UNKNOWN, CONTROL) else kind == USER_DEFINED
    return [AddedToken(token, special=kind != USER_DEFINED, normalized=False, rstrip=strips(token))
            for token, kind in zip(keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]) if wanted(token, kind)]


def merges_by_score(tokens, scores, kinds):
    """Every merge of two tokens to a third, the best score first."""
    known = {token for token, kind in zip(tokens, kinds) if kind in (NORMAL, USER_DEFINED)}
    pairs = []
    for i, token in enumerate(tokens):
        if token in known:
            pairs += [(-scores[i], token[:at], token[at:]) for at in range(1, len(token))
                      if token[:at] in known and token[at:] in known]
    return [pair[1:] for pair in sorted(pairs, key=lambda pair: pair[0])]


def hugging_face(keys, special):
    tokens = keys["tokenizer.ggml.tokens"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    model, pre = keys["tokenizer.ggml.model"], keys.get("tokenizer.ggml.pre")
    if model == "gpt2":
        merges = [tuple(merge.split(" ")) for merge in keys["tokenizer.ggml.merges"]]
        result = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre in WHOLE_WORDS))
        result.pre_tokenizer = pre_tokenizers.Sequence(RULES[pre]())
        result.decoder = decoders.ByteLevel()
    else:
        fallback = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
        if model == "llama":
            merges = merges_by_score(tokens, keys["tokenizer.ggml.scores"], keys["tokenizer.ggml.token_type"])
            result = Tokenizer(models.BPE(vocabulary, merges, **fallback))
            result.normalizer = normalizers.Sequence(
                [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
        else:
            merges = [tuple(merge.split(" ")) for merge in keys["tokenizer.ggml.merges"]]
            result = Tokenizer(models.BPE(vocabulary, merges, **fallback))
            result.normalizer = normalizers.Replace(" ", SPACE)
        strip = [decoders.Strip(" ", 1, 0)] if model == "llama" else []
        result.decoder = decoders.Sequence(
            [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()] + strip)
    result.add_tokens(specials(keys, special))
    return result


def reduce(keys, texts, name):
    """Writes the part of a vocabulary that the texts can need."""
    tokens, kinds = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    if keys["tokenizer.ggml.model"] == "gpt2":
        table = make.byte_level()
        spell = lambda text: "".join(table[byte] for byte in text.encode())
    else:
        # A space may be prepended after any special token.
        spell = lambda text: SPACE + text.replace(" ", SPACE)
    found = [token for token, kind in zip(tokens, kinds) if kind in (UNKNOWN, CONTROL, USER_DEFINED)]
    starts = lambda text: [text] + [text[text.index(token) + len(token):].lstrip() for token in found if token in text]
    seen = sorted({spell(part) for text in texts for part in starts(text)})
    blob = "\n\0\n".join(seen)
    occurs = lambda token: len(token) == 1 or token in blob
    named = {keys[key] for key in keys if key.endswith("_token_id")}
    kept = [i for i, token in enumerate(tokens) if i in named or kinds[i] == BYTE
            or kinds[i] in (UNKNOWN, CONTROL) or occurs(token)
            # `<|tool_response>` makes `</s>` text.
            or kinds[i] == USER_DEFINED and (any(token in text for text in texts) or token == "<|tool_response>")]
    place = {i: at for at, i in enumerate(kept)}
    small = {key: keys[key] for key in ["general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.pre",
                                        "tokenizer.ggml.add_space_prefix", "tokenizer.ggml.add_bos_token"] if key in keys}
    small["tokenizer.ggml.tokens"] = [tokens[i] for i in kept]
    small["tokenizer.ggml.token_type"] = [kinds[i] for i in kept]
    if "tokenizer.ggml.merges" in keys:
        known = set(small["tokenizer.ggml.tokens"])
        small["tokenizer.ggml.merges"] = [
            merge for merge in keys["tokenizer.ggml.merges"]
            if merge.replace(" ", "") in known and all(part in known for part in merge.split(" "))]
    if keys["tokenizer.ggml.model"] == "llama":
        small["tokenizer.ggml.scores"] = [keys["tokenizer.ggml.scores"][i] for i in kept]
    for key in sorted(keys):
        if key in ("tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"):
            small[key] = place[keys[key]]
    small["original_ids"] = kept
    make.write(make.HERE / f"{name}.gguf", small)
    return kept


def trained(keys, texts):
    """The model's metadata with a byte-level vocabulary trained on whole texts as words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = bytes_only()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=6000, min_frequency=1, initial_alphabet=alphabet, show_progress=False)
    # Short substrings, so that merges are short and span every boundary.
    pairs = [text[at:at + size] for text in texts for size in (2, 3, 5) for at in range(len(text) - size + 1)]
    tokenizer.train_from_iterator(pairs, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return {key: value for key, value in keys.items() if not key.startswith("tokenizer.")} | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [NORMAL] * len(tokens),
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "llama.vocab_size": len(tokens),
    }


def rwkv(keys, texts):
    """The same as `vectors`, for an RWKV vocabulary with the trained tokens."""
    alphabet = {character: byte for byte, character in make.byte_level().items()}
    words = [bytes(alphabet[c] for c in token) for token in keys["tokenizer.ggml.tokens"]]
    words = [bytes([i]) for i in range(256)] + sorted(word for word in words if len(word) > 1 and word not in (b"<s>", b"</s>"))
    keys = {key: value for key, value in keys.items() if key != "tokenizer.ggml.merges"} | {
        "tokenizer.ggml.model": "rwkv",
        "tokenizer.ggml.tokens": ["<s>"] + [repr(word)[2:-1] for word in words],
        "tokenizer.ggml.token_type": [CONTROL] + [NORMAL] * len(words),
        "llama.vocab_size": 1 + len(words),
    }
    path = make.HERE / "rwkv.gguf"
    with tempfile.TemporaryDirectory() as folder:
        whole = pathlib.Path(folder) / "rwkv.gguf"
        make.write(whole, keys)
        llama = LlamaCpp(whole)
    known = {word: i for i, word in enumerate(words, 1)}
    longest = max(map(len, words))

    def plain(text):
        ids, rest = [], text.encode()
        while rest:
            size = next(size for size in range(longest, 0, -1) if rest[:size] in known)
            ids.append(known[rest[:size]])
            rest = rest[size:]
        return ids

    def special(text):
        first, *others = map(plain, text.split("<s>"))
        return first + [i for other in others for i in [0] + other]

    cases = []
    for text in texts:
        case = {"text": text, "special": special(text), "plain": plain(text)}
        # llama.cpp parses the control token in both modes.
        theirs = {way: llama.ids(text, way == "special") for way in ("special", "plain")}
        theirs = {way: ids for way, ids in theirs.items() if ids != case[way]}
        cases.append(case | ({"llama_cpp": theirs} if theirs else {}) | {"decoded": text})
    report("rwkv", cases)
    count = 1 + len(words)
    small = {key: value for key, value in keys.items() if key.startswith("tokenizer.ggml")}
    make.write(path, {"general.architecture": "rwkv7"} | small | {"original_ids": list(range(count))})
    return {"pieces": checksum([llama.piece(token) for token in range(count)]), "cases": cases}


def vectors(name, keys, path, texts):
    """Ids of all texts by Hugging Face, and by llama.cpp if they differ."""
    llama = LlamaCpp(path)
    kept = reduce(keys, texts, name)

    def piece(token):
        # Hugging Face does not convert a token outside of the byte-level alphabet.
        found = llama.piece(token)
        return keys["tokenizer.ggml.tokens"][token].encode() if b"[UNK_BYTE_" in found else found

    mode = {"special": True, "plain": False}
    others = {name: hugging_face(keys, special) for name, special in mode.items()}
    cases = []
    for text in texts:
        case = {"text": text}
        for way, special in mode.items():
            case[way] = others[way].encode(text, add_special_tokens=False).ids
            known = llama.ids(text, special)
            if known != case[way]:
                case.setdefault("llama_cpp", {})[way] = known
        if keys["tokenizer.ggml.model"] == "gpt2":
            case["decoded"] = b"".join(map(piece, case["plain"])).decode()
        else:
            case["decoded"] = others["plain"].decode(case["plain"], skip_special_tokens=True)
        cases.append(case)
    report(name, cases)
    spelt = [piece(token) for token in kept if keys["tokenizer.ggml.token_type"][token] != UNUSED]
    return {"pieces": checksum(spelt), "cases": cases}


def checksum(pieces):
    """FNV-1a, 64 bits."""
    state = 0xCBF29CE484222325
    for byte in b"".join(len(piece).to_bytes(4, "little") + piece for piece in pieces):
        state = (state ^ byte) * 0x100000001B3 % 2**64
    return f"{state:016x}"


def main():
    source = pathlib.Path(sys.argv[1])
    common = [case["text"] for case in json.loads((make.HERE / "vectors.json").read_text())["llama-bpe"]] + TEXTS
    result, texts = {}, {}
    for name in FAMILIES:
        path = source / f"ggml-vocab-{name}.gguf"
        keys = make.read(path.read_bytes())
        shipped = pathlib.Path(f"{path}.inp").read_text().split("\n__ggml_vocab_test__\n")
        shipped = shipped if shipped[-1] else shipped[:-1]
        texts = list(dict.fromkeys(shipped + common))
        result[name] = vectors(name, keys, path, texts)
        cases = result[name]["cases"]
        known = [[int(i) for i in line.split()] for line in pathlib.Path(f"{path}.out").read_text().splitlines()]
        by_text = {case["text"]: case for case in cases}
        for text, ids in zip(shipped, known, strict=True):
            case = by_text[text]
            assert ids == case.get("llama_cpp", case).get("special", case["special"]), (name, text)
    keys = trained(make.read((source / "ggml-vocab-llama-bpe.gguf").read_bytes()), common)
    for name in RULES:
        keys["tokenizer.ggml.pre"] = name
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "trained.gguf"
            make.write(path, keys)
            result[f"trained:{name}"] = vectors("trained", keys, path, common)
    result["rwkv"] = rwkv(keys, common)
    lines = ",\n".join(
        f' "{name}": {{"pieces": "{family["pieces"]}", "cases": [\n'
        + ",\n".join("  " + json.dumps(case, separators=(",", ":")) for case in family["cases"]) + "\n ]}"
        for name, family in result.items())
    (make.HERE / "families.json").write_text("{\n" + lines + "\n}\n")


def report(name, cases):
    different = [case for case in cases if "llama_cpp" in case]
    print(name, len(cases), "cases, llama.cpp differs in", len(different))
    for case in different:
        for mode in case["llama_cpp"]:
            print("   ", mode, repr(case["text"][:60]), case[mode][:24], case["llama_cpp"][mode][:24])


if __name__ == "__main__":
    main()
