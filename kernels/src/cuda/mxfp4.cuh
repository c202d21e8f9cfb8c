// Nibbles for twice the numbers of E2M1; eight exponents as the tail.
#pragma once
#include "levels.cuh"

struct MXFP4 : Leaf<0, 0> {
    enum : int { HEAD = 0, QUANTS = 8, TAIL = 8 };
    typedef Levels<0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu> Table;
    struct Raw {
        uint4 codes;
        u32 exponent;
    };
    DEVICE Raw load(const Superblock& s, u32 chunk) {
        return {fetch_piece(s.piece(chunk), 0), fetch<u8>(s.tail + static_cast<u64>(chunk))};
    }
    // 2^(exponent - 128), of which the least two are no normal numbers.
    DEVICE float power(u32 exponent) {
        return __uint_as_float(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
    }
    DEVICE Weights unpack(const Head&, const Raw& raw, u32, int) {
        Weights out;
        Table::of(raw.codes, out.w);
        scales(power(raw.exponent), 0.0f, out);
        return out;
    }
};
