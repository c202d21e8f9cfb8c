// Formats with 2-bit values: byte l of a piece has columns l, 16 + l, 32 + l and 48 + l of 64, the
// first in its lowest bits.
#pragma once
#include "tile.cuh"

struct Pairs {
    enum : int { QUANTS = 4, CHUNK = 64, WHOLE = 1, SPAN = 256, LEAF = 0, CONVERTS = 0 };

    // The bits of 16 columns are not shifted.
    DEVICE int shift(int b, int half) { return 2 * (2 * b + half); }
    DEVICE void unpack(const uint4& piece, int b, u32 (&w)[8]) {
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = word(piece, i % 4) & 0x03030303u << shift(b, i / 4);
    }
    // Sum of products of half a block, shifted back.
    DEVICE i32 products(const Weights& w, const Activations& a, int half, i32 sum) {
#pragma unroll
        for (int i = 4 * half; i < 4 * half + 4; i++) sum = dot4_unsigned(w.w[i], word(a, i), sum);
        return sum;
    }
    DEVICE i32 product(const Weights& w, const Activations& a, int b, int half) {
        return products(w, a, half, 0) >> shift(b, half);
    }
    // The same, starting from a bias whose top bits return in the shift.
    DEVICE i32 product_from(u32 bias, const Weights& w, const Activations& a, int b, int half) {
        int by = shift(b, half);
        u32 sum = products(w, a, half, static_cast<i32>(bias << by));
        return static_cast<i32>(by == 0 ? sum : __funnelshift_r(sum, bias >> (32 - by), by));
    }
    DEVICE u32 code(const Weights& w, int b, int i) { return (w.w[i / 4] >> (8 * (i % 4) + shift(b, i / 16))) & 3; }
};

template <class F>
struct TileOfPairs {
    enum : u32 { AS_IS = 0 };
    template <int COUNT>
    DEVICE void unpack(const Pieces<COUNT>& raw, u32 chunk, u32 row, Bytes& to) {
        uint4 v = raw.row(F::HEAD + chunk, row);
#pragma unroll
        for (u32 k = 0; k < 4; k++)
            to.row(4 * chunk + k, row) = each_word([&](int i) { return (word(v, i) >> 2 * k) & 0x03030303u; });
    }
};
