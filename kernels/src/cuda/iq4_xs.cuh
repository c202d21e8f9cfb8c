// Weight format IQ4_XS: nibbles for the levels of IQ4_NL. The tail is a step, then 8 scales of 6
// bits: upper pairs of bits, then lower nibbles.
#pragma once
#include "levels.cuh"

struct IQ4_XS {
    enum : int { HEAD = 0, QUANTS = 8, TAIL = 8, CHUNK = 64, WHOLE = 1 };
    enum : int { SPAN = 256, LEAF = 0, SUMS = 0, ALTERNATES = 0, CONVERTS = 0 };
    struct Head {
        u32 lower, upper;
        float step;
    };
    struct Raw {
        uint4 codes[2];
    };
    DEVICE Head of(uint2 tail) { return {tail.y, tail.x >> 16, half_to_float(tail.x)}; }
    DEVICE Head head(const Superblock& s) { return of(fetch<uint2>(s.tail)); }
    DEVICE float begin(const Head& head) {
        i32 sum = dot4_unsigned(head.lower & 0x0f0f0f0fu, 0x01010101u, -256);
        sum = dot4_unsigned((head.lower >> 4) & 0x0f0f0f0fu, 0x01010101u, sum);
        sum += 16 * __popc(head.upper & 0x5555u) + 32 * __popc(head.upper & 0xaaaau);
        return __fmul_rn(__fmul_rn(-bias(), head.step), static_cast<float>(sum));
    }
    // Scale of a block: (2^23 + scale) - (2^23 + 32), times the step, exact.
    DEVICE float scale(const Head& head, u32 block) {
        u32 six = ((head.lower >> (4 * block)) & 15) | ((head.upper >> (2 * block)) & 3) << 4;
        return __fmul_rn(__fsub_rn(__uint_as_float(0x4b000000u | six), 8388640.0f), head.step);
    }
    DEVICE Raw load(const Superblock& s, u32 chunk) {
        const u8* quants = s.piece(2 * chunk);
        return {{fetch_piece(quants, 0), fetch_piece(quants, 1)}};
    }
    DEVICE Weights unpack(const Head& head, const Raw& raw, u32 chunk, int b) {
        Weights out;
        FourBitLevels::of(raw.codes[b], out.w);
        out.scale[0] = scale(head, 2 * chunk + b);
        return out;
    }
    DEVICE float dot(const Weights& w, const Activations& a, int, float sum) {
        return __fmaf_rn(__int_as_float(dot_block<dot4>(w, a, BIAS_BITS)), w.scale[0], sum);
    }
    DEVICE float value(const Weights& w, int, int i) {
        return __fmul_rn(w.scale[0], static_cast<float>(static_cast<i8>(w.w[i / 4] >> (8 * (i % 4)))));
    }
};

template <>
struct Tile<IQ4_XS> : TileByLevels<IQ4_XS, FourBitLevels> {
    enum : u32 { AS_IS = 0, OF_16 = 0 };
    template <int COUNT>
    DEVICE void scales(const Pieces<COUNT>&, u32, const u8* tail, u32 quarter, float2* out, float& begin) {
        IQ4_XS::Head of = IQ4_XS::of(*reinterpret_cast<const uint2*>(tail));
        out[0] = {IQ4_XS::scale(of, 2 * quarter), 0.0f};
        out[1] = {IQ4_XS::scale(of, 2 * quarter + 1), 0.0f};
        if (quarter == 0) begin = IQ4_XS::begin(of);
    }
};
