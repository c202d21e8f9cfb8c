// Weight format Q2_K: 16 bytes with a scale in the low and a minimum in the high nibble; 2-bit
// values; the tail is two steps.
#pragma once
#include "pairs.cuh"

struct Q2_K : Pairs {
    enum : int { HEAD = 1, TAIL = 4, SUMS = 2, ALTERNATES = 16 };
    struct Head {
        float step, minus_least;
        i32 difference;
    };
    struct Raw {
        uint4 pairs;
        u32 both;
    };
    // Sum of four scales, negated for odd groups of 16 columns.
    DEVICE i32 difference(u32 both, i32 sum) { return dot4_unsigned(both & 0x0f0f0f0fu, 0xff01ff01u, sum); }
    DEVICE Head of(u32 steps, i32 difference) {
        return {half_to_float(steps), -half_to_float(steps >> 16), difference};
    }
    DEVICE Head head(const Superblock& s) {
        uint4 both = fetch_piece(s.pieces, 0);
        i32 sum = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) sum = difference(word(both, i), sum);
        return of(fetch<u32>(s.tail), sum);
    }
    DEVICE float begin(const Head& head) {
        return __fmul_rn(__fmul_rn(-bias(), head.step), static_cast<float>(head.difference));
    }
    DEVICE float scale(const Head& head, u32 both, int i) { return WithMinimum::times(both & 0x0f0f0f0fu, i, head.step); }
    DEVICE float minus_minimum(const Head& head, u32 both, int i) {
        return WithMinimum::times((both >> 4) & 0x0f0f0f0fu, i, head.minus_least);
    }
    DEVICE Raw load(const Superblock& s, u32 chunk) {
        return {fetch_piece(s.piece(chunk), 1), fetch<u32>(s.pieces + static_cast<u64>(4 * chunk))};
    }
    DEVICE Weights unpack(const Head& head, const Raw& raw, u32, int b) {
        Weights out;
        Pairs::unpack(raw.pairs, b, out.w);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            out.scale[h] = scale(head, raw.both, 2 * b + h);
            out.offset[h] = minus_minimum(head, raw.both, 2 * b + h);
        }
        return out;
    }
    DEVICE float dot(const Weights& w, const Activations& a, int b, float sum) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            i32 biased = product_from(h == 0 ? BIAS_BITS : MINUS_BIAS_BITS, w, a, b, h);
            sum = __fmaf_rn(__int_as_float(biased), w.scale[h], sum);
            sum = __fmaf_rn(w.offset[h], a.sums[h], sum);
        }
        return sum;
    }
    DEVICE float value(const Weights& w, int b, int i) {
        return __fadd_rn(__fmul_rn(w.scale[i / 16], static_cast<float>(code(w, b, i))), w.offset[i / 16]);
    }
};

template <>
struct Tile<Q2_K> : TileOfPairs<Q2_K> {
    enum : u32 { OF_16 = 1 };
    template <int COUNT>
    DEVICE void scales(const Pieces<COUNT>& raw, u32 row, const u8* tail, u32 quarter, float2* out, float& begin) {
        u32 both = reinterpret_cast<const u32*>(&raw.row(0, row))[quarter];
        Q2_K::Head of = Q2_K::of(*reinterpret_cast<const u32*>(tail), sum_of_4(Q2_K::difference(both, 0)));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            // Odd groups of 16 columns use negated activations: the product of both negated values
            // is the one to add.
            out[2 * i] = {Q2_K::scale(of, both, 2 * i), -Q2_K::scale(of, both, 2 * i + 1)};
            out[2 * i + 1] = {Q2_K::minus_minimum(of, both, 2 * i), Q2_K::minus_minimum(of, both, 2 * i + 1)};
        }
        if (quarter == 0) begin = Q2_K::begin(of);
    }
};
