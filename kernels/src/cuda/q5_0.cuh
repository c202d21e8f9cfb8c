// Weight format Q5_0: eight steps, inverted fifth bits, nibbles. A fifth bit and its nibble are
// q - 16 in two's complement.
#pragma once
#include "nibbles.cuh"

struct Q5_0 : Leaf<3, 0> {
    enum : int { HEAD = 3, QUANTS = 8, TAIL = 0 };
    struct Raw {
        uint4 nibbles;
        u32 fifths, step;
    };
    DEVICE Raw load(const Superblock& s, u32 chunk) {
        return {fetch_piece(s.piece(chunk), 3),
                fetch<u32>(s.piece(chunk / 4) + PIECE_STRIDE + static_cast<u64>(chunk % 4 * 4)),
                fetch<u16>(s.pieces + static_cast<u64>(2 * chunk))};
    }
    DEVICE Weights unpack(const Head&, const Raw& raw, u32, int) {
        Weights out;
        eightfold(raw.nibbles, raw.fifths, out.w);
        scales(half_to_float(raw.step), 0.0f, out);
        return out;
    }
};

template <>
struct Tile<Q5_0> : TileOfSteps, TileByBlocks<Q5_0> {
    template <int COUNT>
    DEVICE void bytes(const Pieces<COUNT>& raw, u32 block, u32 row, u32 (&w)[8]) {
        fives_of<Q5_0>(raw, block, row, w);
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = extend<16>(w[i]);
    }
};
