#!/usr/bin/env python3
"""Generates the test vectors of `plan::quant` with the numpy reference of the `gguf` package (0.19.0).

For each format, blocks.TYPE.bin has random and extreme blocks, and values.TYPE.bin the reference's values for them
(little-endian f32). For the formats that the reference can quantise, input.TYPE.bin has numbers and stored.TYPE.bin the
reference's blocks. Needs: pip install gguf numpy. Run from the repository root.
"""

import pathlib
import warnings

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.constants import GGML_QUANT_SIZES
from gguf import quants
from gguf.quants import dequantize, quantize

warnings.filterwarnings("ignore", category=RuntimeWarning)
OUT = pathlib.Path("tests/data/quant")
RANDOM = 4

# Offsets of the f16 scales in a block.
SCALES = {
    T.Q8_0: [0],
    T.Q4_0: [0],
    T.Q4_1: [0, 2],
    T.Q5_0: [0],
    T.Q5_1: [0, 2],
    T.IQ4_NL: [0],
    T.MXFP4: [],
    T.Q2_K: [80, 82],
    T.Q3_K: [108],
    T.Q4_K: [0, 2],
    T.Q5_K: [0, 2],
    T.Q6_K: [208],
    T.IQ4_XS: [0],
    T.IQ3_S: [0],
    T.IQ3_XXS: [0],
    T.IQ2_S: [0],
    T.IQ2_XS: [0],
    T.IQ2_XXS: [0],
    # The scale is spread over four nibbles, which stay random.
    T.IQ1_M: [],
    T.IQ1_S: [0],
    T.TQ1_0: [52],
    T.TQ2_0: [64],
}
# Zero, negative zero, the smallest and the largest subnormal, the largest number, a negative one, infinity.
HALVES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0xB555, 0x7C00]



def random(kind, what):
    """Generator for one file, so that a new type does not change the files of others."""
    return np.random.default_rng([20, kind.value, what])


def blocks_of(kind):
    rng = random(kind, 0)
    size = GGML_QUANT_SIZES[kind][1]
    blocks = rng.integers(0, 256, (RANDOM + len(HALVES) + 2, size), dtype=np.uint8)
    for at in SCALES[kind]:
        # Ordinary scales for the random blocks.
        scale = rng.normal(0, 0.02, RANDOM).astype(np.float16)
        blocks[:RANDOM, at : at + 2] = scale.view(np.uint8).reshape(RANDOM, 2)
        for i, half in enumerate(HALVES):
            blocks[RANDOM + i, at : at + 2] = [half & 255, half >> 8]
    blocks[-2] = 255
    blocks[-1] = 0
    return blocks


# Codebooks of the IQ types: 16 bits per entry, in which pairs or nibbles are indices of magnitudes.
GRIDS = pathlib.Path("crates/plan/src/quant/formats/grids")
for name, of in [
    ("iq2_xxs", quants.IQ2_XXS),
    ("iq2_xs", quants.IQ2_XS),
    ("iq2_s", quants.IQ2_S),
    ("iq3_xxs", quants.IQ3_XXS),
    ("iq3_s", quants.IQ3_S),
    ("iq1", quants.IQ1_S),
]:
    of.init_grid()
    grid = of.grid.reshape(of.grid_shape)
    numbers = sum((grid == value).astype(np.uint16) * i for i, value in enumerate(of.grid_map))
    width = 16 // of.grid_shape[1]
    entries = sum(numbers[:, i].astype(np.uint16) << (width * i) for i in range(of.grid_shape[1]))
    (GRIDS / f"{name}.bin").write_bytes(entries.astype("<u2").tobytes())


def save(name, array):
    (OUT / f"{name}.bin").write_bytes(array.tobytes())


for kind in SCALES:
    blocks = blocks_of(kind)
    save(f"blocks.{kind.name}", blocks)
    save(f"values.{kind.name}", dequantize(blocks, kind).astype("<f4"))

every_half = np.arange(0, 65536, 61, dtype=np.uint16)
save("blocks.F16", every_half)
save("values.F16", dequantize(every_half, T.F16).astype("<f4"))
save("blocks.BF16", every_half)
save("values.BF16", dequantize(every_half.view(np.uint8), T.BF16).astype("<f4"))

for kind in [
    T.Q8_0,
    T.Q4_0,
    T.Q4_1,
    T.Q5_0,
    T.Q5_1,
    T.MXFP4,
    T.TQ1_0,
    T.TQ2_0,
    T.F16,
    T.BF16,
]:
    columns = max(32, GGML_QUANT_SIZES[kind][0])
    rows = random(kind, 1).normal(0, 1, (8, columns)).astype(np.float32)
    rows[1] *= 1e-6
    rows[2] *= 1e4
    rows[3] = 0
    # Ties: multiples of 0.5 with a scale of 1.
    rows[4] = np.arange(columns) % 32 * 0.5 - 8
    rows[4][0] = {T.Q8_0: 127, T.Q5_0: -16, T.TQ1_0: 1, T.TQ2_0: 1}.get(kind, -8)
    if kind in (T.TQ1_0, T.TQ2_0):
        rows[4] = rows[4].clip(-1, 1)
    rows[5][::2] = 0
    rows[6] = -1.25
    save(f"input.{kind.name}", rows.astype("<f4"))
    save(f"stored.{kind.name}", quantize(rows, kind))
