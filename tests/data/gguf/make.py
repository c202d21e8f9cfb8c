#!/usr/bin/env python3
"""Generates the reader's corpus: small GGUF files, valid and malicious.

Writes fuzz/corpus/gguf/*.gguf, and tests/data/gguf/expected.tsv with `ok` for each valid file and the byte offset, the
field and a part of the error message for each other file. The files are packed here by hand from the format's
description, so that they are independent of this project's writer and of any library. Run from the repository root.
"""

import pathlib
import struct

CORPUS = pathlib.Path("fuzz/corpus/gguf")
EXPECTED = pathlib.Path("tests/data/gguf/expected.tsv")

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARRAY, U64, I64, F64 = range(13)
PACK = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B",
        U64: "Q", I64: "q", F64: "d"}


class File:
    """Bytes of a file, and named offsets in it."""

    def __init__(self, tensors=0, keys=0, magic=b"GGUF", version=3):
        self.bytes = bytearray(magic)
        self.marks = {}
        self.raw("I", version)
        self.raw("Q", tensors)
        self.raw("Q", keys)

    def mark(self, name):
        self.marks[name] = len(self.bytes)
        return self

    def raw(self, fmt, *values):
        self.bytes += struct.pack("<" + fmt, *values)
        return self

    def text(self, value):
        value = value if isinstance(value, bytes) else value.encode()
        self.raw("Q", len(value))
        self.bytes += value
        return self

    def value(self, kind, value):
        if kind == STR:
            return self.text(value)
        if kind == ARRAY:
            element, items = value
            self.raw("IQ", element, len(items))
            for item in items:
                self.value(element, item)
            return self
        return self.raw(PACK[kind], value)

    def key(self, name, kind, value):
        self.mark("key").text(name)
        self.mark("type").raw("I", kind)
        return self.mark("value").value(kind, value)

    def tensor(self, name, dims, kind, offset, count=None):
        self.mark("name").text(name)
        self.mark("count").raw("I", len(dims) if count is None else count)
        self.mark("dims").raw(f"{len(dims)}Q", *dims)
        self.mark("kind").raw("I", kind)
        return self.mark("offset").raw("Q", offset)

    def pad(self, alignment=32):
        self.bytes += bytes(-len(self.bytes) % alignment)
        return self

    def data(self, size):
        self.bytes += bytes(i * 37 & 255 for i in range(size))
        return self


expected = []


def ok(name, file):
    (CORPUS / f"{name}.gguf").write_bytes(file.bytes)
    expected.append(f"{name}\tok")


def bad(name, file, mark, field, message):
    offset = mark if isinstance(mark, int) else file.marks[mark]
    (CORPUS / f"{name}.gguf").write_bytes(file.bytes)
    expected.append(f"{name}\t{offset}\t{field}\t{message}")


def every_type(version):
    f = File(2, 17, version=version)
    f.key("general.architecture", STR, "llama")
    f.key("a.u8", U8, 255).key("a.i8", I8, -128).key("a.u16", U16, 65535).key("a.i16", I16, -32768)
    f.key("a.u32", U32, 2**32 - 1).key("a.i32", I32, -(2**31)).key("a.f32", F32, 1.5)
    f.key("a.bool", BOOL, 1).key("a.str", STR, "h\u00e9llo \u4e16\u754c").key("a.u64", U64, 2**64 - 1)
    f.key("a.i64", I64, -(2**63)).key("a.f64", F64, 0.1)
    f.key("a.strs", ARRAY, (STR, ["", "x", "\u0120the"]))
    f.key("a.i32s", ARRAY, (I32, [-1, 0, 1]))
    f.key("a.empty", ARRAY, (F64, []))
    f.key("a.nested", ARRAY, (ARRAY, [(U8, [1, 2]), (STR, ["y"]), (ARRAY, [(BOOL, [0, 1])])]))
    f.tensor("w", [64, 3], 8, 224).tensor("norm.weight", [5], 0, 0)
    return f.pad().data(32 + 192 + 204)


def one_tensor(dims=(64, 2), kind=0, offset=0, size=512, name="w", **more):
    return File(1, 0).tensor(name, list(dims), kind, offset, **more).pad().data(size)


ok("types-v3", every_type(3))
ok("types-v2", every_type(2))
ok("no-tensors", File(0, 1).key("general.architecture", STR, "llama"))
ok("empty", File())
ok("alignment-256", File(2, 1).key("general.alignment", U32, 256).tensor("a", [3], 26, 0)
   .tensor("b", [32], 2, 256).pad(256).data(256 + 18))
ok("alignment-1", File(2, 1).key("general.alignment", U32, 1).tensor("a", [3], 1, 0)
   .tensor("b", [32], 2, 6).data(24))
for kind, name, row, size in [(0, "f32", 1, 4), (1, "f16", 1, 2), (30, "bf16", 1, 2), (8, "q8_0", 32, 34),
                              (2, "q4_0", 32, 18), (12, "q4_k", 256, 144), (13, "q5_k", 256, 176),
                              (14, "q6_k", 256, 210), (26, "i32", 1, 4)]:
    ok(f"tensor-{name}", one_tensor(dims=(row, 2, 1, 1), kind=kind, size=2 * size))

bad("magic", File(magic=b"GGML"), 0, "magic", "not a GGUF file")
bad("short-magic", type("F", (), {"bytes": b"GG"}), 0, "magic", "4 bytes needed, 2 left")
bad("nothing", type("F", (), {"bytes": b""}), 0, "magic", "4 bytes needed, 0 left")
bad("version-1", File(version=1), 4, "version", "version 1 is not supported")
bad("version-4", File(version=4), 4, "version", "version 4 is not supported")
bad("big-endian", File(version=0x03000000), 4, "version", "big-endian")
bad("tensor-count", File(2**63), 8, "tensor count", "cannot fit")
bad("tensor-count-overflow", File(2**64 - 1), 8, "tensor count", "cannot fit")
bad("key-count", File(0, 2**60), 16, "metadata count", "cannot fit")
bad("key-length", File(0, 1).raw("Q", 2**62).mark("at").data(32), "at", "metadata key 0", "bytes needed")
bad("key-too-long", File(0, 1).key("k" * 65_536, U8, 0), "key", "metadata key 0", "the limit is 65535")
bad("key-utf8", File(0, 1).key(b"a\xff", U8, 0), "key", "metadata key 0", "not UTF-8 from its byte 1")
bad("key-twice", File(0, 2).key("k", U8, 0).key("k", U8, 1), "key", "metadata `k`", "twice")
bad("value-type", File(0, 1).mark("at").text("k").mark("type").raw("I", 13).data(8), "type",
    "metadata `k`", "unknown metadata type 13")
bad("value-cut", File(0, 1).text("key").raw("I", U64).mark("at").data(3), "at", "metadata `key`",
    "8 bytes needed, 3 left")
bad("bool-2", File(0, 1).key("k", BOOL, 2), "value", "metadata `k`", "found 2")
bad("string-utf8", File(0, 1).key("k", STR, b"\xc3"), "value", "metadata `k`", "not UTF-8 from its byte 0")
bad("string-length", File(0, 1).text("k").raw("I", STR).raw("Q", 2**64 - 1).mark("at"), "at",
    "metadata `k`", "bytes needed")
bad("array-length", File(0, 1).text("k").raw("II", ARRAY, U8).mark("at").raw("Q", 2**40).data(16), "at",
    "metadata `k`", "cannot fit")
bad("array-overflow", File(0, 1).text("k").raw("II", ARRAY, U64).mark("at").raw("Q", 2**61 + 1).data(16),
    "at", "metadata `k`", "cannot fit")
bad("array-of-strings", File(0, 1).text("k").raw("IIQ", ARRAY, STR, 2).text("a").raw("Q", 99).mark("at"),
    "at", "metadata `k`", "99 bytes needed, 0 left")
bad("array-type", File(0, 1).text("k").raw("I", ARRAY).mark("at").raw("I", 77).raw("Q", 0), "at",
    "metadata `k`", "unknown metadata type 77")
deep = File(0, 1).text("k").raw("I", ARRAY)
for _ in range(8):
    deep.raw("IQ", ARRAY, 1)
bad("array-depth", deep.mark("at").raw("IQ", U8, 0), "at", "metadata `k`", "more than 8 deep")
for name, kind, value, message in [("zero", U32, 0, "found 0"), ("24", U32, 24, "found 24"),
                                   ("type", U64, 32, "found UINT64")]:
    bad(f"alignment-{name}", File(0, 1).key("general.alignment", kind, value), "value",
        "metadata `general.alignment`", message)

f = one_tensor(name=b"\x80" * 4)
bad("tensor-name-utf8", f, "name", "name of tensor 0", "not UTF-8")
f = File(2, 0).tensor("w", [8], 0, 0).tensor("w", [8], 0, 32).pad().data(64)
bad("tensor-twice", f, "name", "name of tensor `w`", "twice")
bad("dims-0", one_tensor(dims=()), "count", "dimension count of tensor `w`", "0 dimensions")
bad("dims-5", one_tensor(dims=(1,) * 5), "count", "dimension count of tensor `w`", "5 dimensions")
bad("dims-many", one_tensor(count=2**32 - 1), "count", "dimension count of tensor `w`", "4294967295")
f = one_tensor(dims=(64, 0))
bad("dims-zero", f, f.marks["dims"] + 8, "dimensions of tensor `w`", "dimension 1 is zero")
bad("dims-overflow", one_tensor(dims=(2**33, 2**33)), "dims", "dimensions of tensor `w`", "overflow")
bad("bytes-overflow", one_tensor(dims=(2**32, 2**31)), "dims", "dimensions of tensor `w`", "overflow")
bad("type-nvfp4", one_tensor(kind=40), "kind", "type of tensor `w`", "NVFP4 is not supported (supported: F32,")
bad("type-q8_1", one_tensor(kind=9), "kind", "type of tensor `w`", "Q8_1 is not supported")
bad("type-unknown", one_tensor(kind=4), "kind", "type of tensor `w`", "unknown tensor type 4")
bad("row-blocks", one_tensor(dims=(48, 2), kind=8), "dims", "dimensions of tensor `w`", "whole blocks of 32")
bad("row-short", one_tensor(dims=(128, 2), kind=12), "dims", "dimensions of tensor `w`", "whole blocks of 256")
bad("offset-misaligned", one_tensor(offset=8), "offset", "offset of tensor `w`", "multiple of the alignment 32")
bad("offset-beyond", one_tensor(offset=1024), "offset", "offset of tensor `w`", "ends after")
bad("offset-overflow", one_tensor(offset=2**64 - 32), "offset", "offset of tensor `w`", "ends after")
bad("data-cut", one_tensor(size=511), "offset", "offset of tensor `w`", "ends after")
bad("data-missing", one_tensor(size=0), "offset", "offset of tensor `w`", "ends after")
f = File(2, 0).tensor("a", [9], 0, 0).tensor("b", [8], 0, 32).pad().data(64)
bad("overlap", f, "offset", "offset of tensor `b`", "overlaps that of `a`")
f = File(2, 0).tensor("a", [64], 0, 0).tensor("b", [8], 0, 0).pad().data(256)
bad("overlap-same", f, "offset", "offset of tensor `b`", "overlaps that of `a`")
f = File(2, 0).tensor("a", [8], 0, 0).mark("at").raw("Q", 1).data(40)
f.bytes = f.bytes[: f.marks["at"] + 8]
bad("directory-cut", f, 8, "tensor count", "cannot fit")

EXPECTED.write_text("".join(line + "\n" for line in expected))
