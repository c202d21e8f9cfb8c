// Weight format Q5_1: eight steps and minima, fifth bits, nibbles.
#pragma once
#include "nibbles.cuh"

struct Q5_1 : Leaf<3, 1> {
    enum : int { HEAD = 4, QUANTS = 8, TAIL = 0 };
    struct Raw {
        uint4 nibbles;
        u32 fifths, step_and_minimum;
    };
    DEVICE Raw load(const Superblock& s, u32 chunk) {
        return {fetch_piece(s.piece(chunk), 4),
                fetch<u32>(s.piece(chunk / 4) + 2 * PIECE_STRIDE + static_cast<u64>(chunk % 4 * 4)),
                fetch_step_and_minimum(s, chunk)};
    }
    DEVICE Weights unpack(const Head&, const Raw& raw, u32, int) {
        Weights out;
        eightfold(raw.nibbles, raw.fifths, out.w);
        scales(half_to_float(raw.step_and_minimum), half_to_float(raw.step_and_minimum >> 16), out);
        return out;
    }
};

template <>
struct Tile<Q5_1> : TileOfStepsAndMinima, TileByBlocks<Q5_1> {
    template <int COUNT>
    DEVICE void bytes(const Pieces<COUNT>& raw, u32 block, u32 row, u32 (&w)[8]) {
        fives_of<Q5_1>(raw, block, row, w);
    }
};
