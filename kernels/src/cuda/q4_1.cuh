// Weight format Q4_1: eight steps and minima, nibbles.
#pragma once
#include "nibbles.cuh"

struct Q4_1 : Leaf<4, 1> {
    enum : int { HEAD = 2, QUANTS = 8, TAIL = 0 };
    struct Raw {
        uint4 nibbles;
        u32 step_and_minimum;
    };
    DEVICE Raw load(const Superblock& s, u32 chunk) {
        return {fetch_piece(s.piece(chunk), 2), fetch_step_and_minimum(s, chunk)};
    }
    DEVICE Weights unpack(const Head&, const Raw& raw, u32, int) {
        Weights out;
        sixteenfold(raw.nibbles, out.w);
        scales(half_to_float(raw.step_and_minimum), half_to_float(raw.step_and_minimum >> 16), out);
        return out;
    }
};

template <>
struct Tile<Q4_1> : TileOfStepsAndMinima, TileByBlocks<Q4_1> {
    template <int COUNT>
    DEVICE void bytes(const Pieces<COUNT>& raw, u32 block, u32 row, u32 (&w)[8]) {
        nibbles_of<Q4_1>(raw, block, row, w);
    }
};
