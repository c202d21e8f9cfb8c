// Weight format TQ2_0: 2-bit values; the tail is a step, which is also the minimum.
#pragma once
#include "pairs.cuh"

struct TQ2_0 : Pairs {
    enum : int { HEAD = 0, TAIL = 2, SUMS = 1, ALTERNATES = 32 };
    struct Head {
        float step;
    };
    struct Raw {
        uint4 pairs;
    };
    DEVICE Head head(const Superblock& s) { return {half_to_float(fetch<u16>(s.tail))}; }
    // Scales and minima cancel.
    DEVICE float begin(const Head&) { return 0.0f; }
    DEVICE Raw load(const Superblock& s, u32 chunk) { return {fetch_piece(s.piece(chunk), 0)}; }
    DEVICE Weights unpack(const Head& head, const Raw& raw, u32, int b) {
        Weights out;
        Pairs::unpack(raw.pairs, b, out.w);
        out.scale[0] = head.step;
        return out;
    }
    DEVICE float dot(const Weights& w, const Activations& a, int b, float sum) {
        i32 biased = product_from(b == 0 ? BIAS_BITS : MINUS_BIAS_BITS, w, a, b, 0) + product(w, a, b, 1);
        sum = __fmaf_rn(__int_as_float(biased), w.scale[0], sum);
        return __fmaf_rn(-w.scale[0], a.sums[0], sum);
    }
    DEVICE float value(const Weights& w, int b, int i) {
        return __fmul_rn(w.scale[0], __fsub_rn(static_cast<float>(code(w, b, i)), 1.0f));
    }
};

template <>
struct Tile<TQ2_0> : TileOfPairs<TQ2_0> {
    enum : u32 { OF_16 = 0 };
    template <int COUNT>
    DEVICE void scales(const Pieces<COUNT>&, u32, const u8* tail, u32 quarter, float2* out, float& begin) {
        float step = half_to_float(*reinterpret_cast<const u16*>(tail));
        // Odd blocks use negated activations: the product of both negated values is the one to add.
        out[0] = {step, -step};
        out[1] = {-step, -step};
        if (quarter == 0) begin = 0.0f;
    }
};
