// Formats whose codes are indices into a table of levels: a byte permutation looks up four at a
// time. Nibble n of a word is the code of column n of 8.
#pragma once
#include "tile.cuh"

// Selects four bytes of two words by nibbles below 8.
DEVICE u32 permute(u32 low, u32 high, u32 nibbles) {
    u32 out;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(low), "r"(high), "r"(nibbles));
    return out;
}

// Table of 16 levels, four per word.
template <u32 A, u32 B, u32 C, u32 D>
struct Levels {
    // Looks up 32 codes.
    DEVICE void of(const uint4& codes, u32 (&w)[8]) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 code = word(codes, i), place = code & 0x77777777u;
            // Selects between the bytes of the lower and the upper half of the table by the
            // code's top bit.
            u32 half = ((code >> 1) & 0x44444444u) | 0x32103210u;
            w[2 * i] = permute(permute(A, B, place), permute(C, D, place), half);
            w[2 * i + 1] = permute(permute(A, B, place >> 16), permute(C, D, place >> 16), half >> 16);
        }
    }
};

// Levels of IQ4_NL and IQ4_XS.
typedef Levels<0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u> FourBitLevels;

// Decodes a block of a tile with a table.
template <class F, class TABLE>
struct TileByLevels : TileByBlocks<F> {
    template <int COUNT>
    DEVICE void bytes(const Pieces<COUNT>& raw, u32 block, u32 row, u32 (&w)[8]) {
        TABLE::of(raw.row(F::HEAD + block, row), w);
    }
};
