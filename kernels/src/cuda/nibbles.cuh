// What blocks of 32 columns in nibbles share, with fifth bits or without: byte l has column l in its lower nibble and column
// 16 + l in its upper one; bit 8 j + i of a word of fifth bits is of column 4 i + j.
#pragma once
#include "format.cuh"

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

// The step of a block and what is added to its weights, a word.
DEVICE u32 fetch_step_and_minimum(const Superblock& s, u32 block) {
    return fetch<u32>(s.piece(block / 4) + static_cast<u64>(block % 4 * 4));
}
