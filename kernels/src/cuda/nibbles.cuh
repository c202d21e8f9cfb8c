// Formats with blocks of 32 columns in nibbles, with or without fifth bits. Byte l has column l in
// its low nibble and column 16 + l in its high nibble; bit 8 j + i of a word of fifth bits is that
// of column 4 i + j.
#pragma once
#include "tile.cuh"

// 16 times each nibble.
DEVICE void sixteenfold(const uint4& nibbles, u32 (&w)[8]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        w[i] = (word(nibbles, i) << 4) & 0xf0f0f0f0u;
        w[i + 4] = word(nibbles, i) & 0xf0f0f0f0u;
    }
}

// 8 times each nibble with its fifth bit.
DEVICE void eightfold(const uint4& nibbles, u32 fifths, u32 (&w)[8]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        w[i] = ((word(nibbles, i) << 3) & 0x78787878u) | ((fifths << (7 - i)) & 0x80808080u);
        w[i + 4] = ((word(nibbles, i) >> 1) & 0x78787878u) | ((fifths << (3 - i)) & 0x80808080u);
    }
}

// Step and minimum of a block, as one word.
DEVICE u32 fetch_step_and_minimum(const Superblock& s, u32 block) {
    return fetch<u32>(s.piece(block / 4) + static_cast<u64>(block % 4 * 4));
}

// Nibbles of a block of a tile.
template <class F, int COUNT>
DEVICE void nibbles_of(const Pieces<COUNT>& raw, u32 block, u32 row, u32 (&w)[8]) {
    uint4 v = raw.row(F::HEAD + block, row);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        w[i] = word(v, i) & 0x0f0f0f0fu;
        w[i + 4] = (word(v, i) >> 4) & 0x0f0f0f0fu;
    }
}

// The same with fifth bits from the last two pieces of the head.
template <class F, int COUNT>
DEVICE void fives_of(const Pieces<COUNT>& raw, u32 block, u32 row, u32 (&w)[8]) {
    u32 fifths = reinterpret_cast<const u32*>(&raw.row(F::HEAD - 2 + block / 4, row))[block % 4];
    nibbles_of<F>(raw, block, row, w);
#pragma unroll
    for (int i = 0; i < 8; i++) w[i] |= (i < 4 ? fifths << (4 - i) : fifths >> (i - 4)) & 0x10101010u;
}

// Formats with steps and minima in the first two pieces of the head.
struct TileOfStepsAndMinima {
    enum : u32 { AS_IS = 0, OF_16 = 0 };
    template <int COUNT>
    DEVICE void scales(const Pieces<COUNT>& raw, u32 row, const u8*, u32 quarter, float2* out, float&) {
        uint2 two = reinterpret_cast<const uint2*>(&raw.row(quarter / 2, row))[quarter % 2];
        out[0] = {half_to_float(two.x), half_to_float(two.x >> 16)};
        out[1] = {half_to_float(two.y), half_to_float(two.y >> 16)};
    }
};
