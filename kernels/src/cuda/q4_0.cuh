// Weight format Q4_0: eight steps, nibbles in two's complement (q - 8).
#pragma once
#include "nibbles.cuh"

struct Q4_0 : Leaf<4, 0> {
    enum : int { HEAD = 1, QUANTS = 8, TAIL = 0 };
    struct Raw {
        uint4 nibbles;
        u32 step;
    };
    DEVICE Raw load(const Superblock& s, u32 chunk) {
        return {fetch_piece(s.piece(chunk), 1), fetch<u16>(s.pieces + static_cast<u64>(2 * chunk))};
    }
    DEVICE Weights unpack(const Head&, const Raw& raw, u32, int) {
        Weights out;
        sixteenfold(raw.nibbles, out.w);
        scales(half_to_float(raw.step), 0.0f, out);
        return out;
    }
};

template <>
struct Tile<Q4_0> : TileOfSteps, TileByBlocks<Q4_0> {
    template <int COUNT>
    DEVICE void bytes(const Pieces<COUNT>& raw, u32 block, u32 row, u32 (&w)[8]) {
        nibbles_of<Q4_0>(raw, block, row, w);
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = extend<8>(w[i]);
    }
};
