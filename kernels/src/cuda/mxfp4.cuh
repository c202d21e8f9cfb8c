// Weight format MXFP4: nibbles for twice the values of E2M1; the tail is eight exponents.
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
    // 2^(exponent - 128), subnormal for the two least exponents.
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

template <>
struct Tile<MXFP4> : TileByLevels<MXFP4, MXFP4::Table> {
    enum : u32 { AS_IS = 0, OF_16 = 0 };
    template <int COUNT>
    DEVICE void scales(const Pieces<COUNT>&, u32, const u8* tail, u32 quarter, float2* out, float&) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float power = MXFP4::power(tail[2 * quarter + i]);
            out[i] = {power, __fmul_rn(-bias(), power)};
        }
    }
};
