// Weight format IQ4_NL: eight steps, nibbles for 16 levels.
#pragma once
#include "levels.cuh"

struct IQ4_NL : Leaf<0, 0> {
    enum : int { HEAD = 1, QUANTS = 8, TAIL = 0 };
    struct Raw {
        uint4 codes;
        u32 step;
    };
    DEVICE Raw load(const Superblock& s, u32 chunk) {
        return {fetch_piece(s.piece(chunk), 1), fetch<u16>(s.pieces + static_cast<u64>(2 * chunk))};
    }
    DEVICE Weights unpack(const Head&, const Raw& raw, u32, int) {
        Weights out;
        FourBitLevels::of(raw.codes, out.w);
        scales(half_to_float(raw.step), 0.0f, out);
        return out;
    }
};

template <>
struct Tile<IQ4_NL> : TileOfSteps, TileByLevels<IQ4_NL, FourBitLevels> {};
