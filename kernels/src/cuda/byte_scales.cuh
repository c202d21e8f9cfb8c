// Formats with a signed byte as scale of 16 columns: the first piece has 16 scales, the tail an f32
// factor. Codes are indices into a table of levels.
#pragma once
#include "levels.cuh"

template <int ALTERNATING, int CONVERTED>
struct ByteScales {
    enum : int { TAIL = 4, CHUNK = 64, WHOLE = 1, SPAN = 256, LEAF = 0, SUMS = 0 };
    enum : int { ALTERNATES = ALTERNATING, CONVERTS = CONVERTED };
    struct Head {
        float step;
        i32 difference;
    };
    // Sum of four scales, negated for odd groups of 16 columns.
    DEVICE i32 difference(u32 four, i32 sum) { return dot4(four, 0xff01ff01u, sum); }
    DEVICE Head head(const Superblock& s) {
        i32 sum = 0;
        if constexpr (ALTERNATES > 0) {
            uint4 scales = fetch_piece(s.pieces, 0);
#pragma unroll
            for (int i = 0; i < 4; i++) sum = difference(word(scales, i), sum);
        }
        return {fetch<float>(s.tail), sum};
    }
    DEVICE float begin(const Head& head) {
        if constexpr (ALTERNATES == 0) return 0.0f;
        return __fmul_rn(__fmul_rn(-bias(), head.step), static_cast<float>(head.difference));
    }
    // Four scales of a chunk.
    DEVICE u32 fetch_scales(const Superblock& s, u32 chunk) { return fetch<u32>(s.pieces + static_cast<u64>(4 * chunk)); }
    DEVICE void scales(const Head& head, u32 four, int b, Weights& out) {
        out.scale[0] = times_signed(four, 2 * b, head.step);
        out.scale[1] = times_signed(four, 2 * b + 1, head.step);
    }
    DEVICE float dot(const Weights& w, const Activations& a, int, float sum) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            i32 biased = h == 1 && ALTERNATES > 0 ? MINUS_BIAS_BITS : BIAS_BITS;
#pragma unroll
            for (int i = 4 * h; i < 4 * h + 4; i++) biased = dot4(w.w[i], word(a, i), biased);
            float products = __int_as_float(biased);
            if constexpr (CONVERTS) products = __fsub_rn(products, bias());
            sum = __fmaf_rn(products, w.scale[h], sum);
        }
        return sum;
    }
    DEVICE float value(const Weights& w, int, int i) {
        return __fmul_rn(w.scale[i / 16], static_cast<float>(static_cast<i8>(w.w[i / 4] >> (8 * (i % 4)))));
    }
};

// 3-bit codes. Word w of a piece has the lower two bits of 16 columns: nibble n those of columns n
// and 8 + n. Bit 4 n + j of a block's word in the head's last pieces is the third bit of column 8 j
// + n.
template <u32 LOW, u32 HIGH, int ALTERNATING, int CONVERTED>
struct Threes : ByteScales<ALTERNATING, CONVERTED> {
    typedef ByteScales<ALTERNATING, CONVERTED> Base;
    enum : int { HEAD = 3, QUANTS = 4 };
    struct Raw {
        uint4 pairs;
        uint2 thirds;
        u32 scales;
    };
    DEVICE Raw load(const Superblock& s, u32 chunk) {
        return {fetch_piece(s.piece(chunk), 3),
                fetch<uint2>(s.piece(chunk / 2) + PIECE_STRIDE + static_cast<u64>(chunk % 2 * 8)),
                Base::fetch_scales(s, chunk)};
    }
    DEVICE void levels(u32 first, u32 second, u32 thirds, u32 (&w)[8]) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            u32 pairs = (j < 2 ? first : second) >> (j % 2 * 2), third = j < 2 ? thirds << (2 - j) : thirds >> (j - 2);
            u32 places = (pairs & 0x33333333u) | (third & 0x44444444u);
            w[2 * j] = permute(LOW, HIGH, places);
            w[2 * j + 1] = permute(LOW, HIGH, places >> 16);
        }
    }
    DEVICE Weights unpack(const typename Base::Head& head, const Raw& raw, u32, int b) {
        Weights out;
        levels(b == 0 ? raw.pairs.x : raw.pairs.z, b == 0 ? raw.pairs.y : raw.pairs.w, b == 0 ? raw.thirds.x : raw.thirds.y,
               out.w);
        Base::scales(head, raw.scales, b, out);
        return out;
    }
};

// 4-bit codes; sums of odd groups of 16 columns are negated.
template <class TABLE>
struct Fours : ByteScales<16, 0> {
    enum : int { HEAD = 1, QUANTS = 8 };
    typedef TABLE Table;
    struct Raw {
        uint4 codes[2];
        u32 scales;
    };
    DEVICE Raw load(const Superblock& s, u32 chunk) {
        const u8* quants = s.piece(2 * chunk);
        return {{fetch_piece(quants, 1), fetch_piece(quants, 2)}, fetch_scales(s, chunk)};
    }
    DEVICE Weights unpack(const Head& head, const Raw& raw, u32, int b) {
        Weights out;
        Table::of(raw.codes[b], out.w);
        scales(head, raw.scales, b, out);
        return out;
    }
};

template <class F>
struct TileOfByteScales {
    enum : u32 { AS_IS = 0, OF_16 = 1 };
    template <int COUNT>
    DEVICE void scales(const Pieces<COUNT>& raw, u32 row, const u8* tail, u32 quarter, float2* out, float& begin) {
        u32 four = reinterpret_cast<const u32*>(&raw.row(0, row))[quarter];
        typename F::Head of = {*reinterpret_cast<const float*>(tail), sum_of_4(F::difference(four, 0))};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            // Odd groups of 16 columns use negated activations: the product of both negated values
            // is the one to add.
            float odd = times_signed(four, 2 * i + 1, of.step);
            out[i] = {times_signed(four, 2 * i, of.step), F::ALTERNATES > 0 ? -odd : odd};
        }
        if (quarter == 0) begin = F::begin(of);
    }
};

template <class F>
struct TileOfThrees : TileOfByteScales<F>, TileByBlocks<F> {
    template <int COUNT>
    DEVICE void bytes(const Pieces<COUNT>& raw, u32 block, u32 row, u32 (&w)[8]) {
        uint2 pairs = reinterpret_cast<const uint2*>(&raw.row(F::HEAD + block / 2, row))[block % 2];
        F::levels(pairs.x, pairs.y, reinterpret_cast<const u32*>(&raw.row(1 + block / 4, row))[block % 4], w);
    }
};

template <class F>
struct TileOfFours : TileOfByteScales<F>, TileByLevels<F, typename F::Table> {};
