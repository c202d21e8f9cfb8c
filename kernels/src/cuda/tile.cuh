// Weights for tensor cores: signed bytes in pieces of 16 columns, and the scales of a superblock as
// f32.
//
// `Tile` of a format defines
//   AS_IS     whether quants are stored as signed bytes
//   OF_16     whether 16 columns share a scale, or a block
//   scales    of a row of a panel's superblock, by four lanes: a pair of f32 for each of two blocks, and the
//             initial value of its sum. A pair is the scales of 16 columns each, followed by one of minima if
//             there are any; or for 32 columns a scale and a minimum, or a step and step times bias
//   unpack    64 columns of a row of a panel
#pragma once
#include "format.cuh"

template <class F>
struct Tile;

// Pieces of a panel's superblock.
template <int COUNT>
struct Pieces {
    u8 bytes[COUNT][PIECE_STRIDE];

    __device__ __forceinline__ const uint4& row(u32 piece, u32 i) const { return reinterpret_cast<const uint4*>(bytes[piece])[i]; }
    __device__ __forceinline__ uint4& row(u32 piece, u32 i) { return reinterpret_cast<uint4*>(bytes[piece])[i]; }
};

// Signed bytes of a panel's superblock.
typedef Pieces<SUPERBLOCK / PIECE> Bytes;

// Sum over 4 neighbouring lanes.
DEVICE i32 sum_of_4(i32 value) {
    value += __shfl_xor_sync(ALL_LANES, value, 1);
    return value + __shfl_xor_sync(ALL_LANES, value, 2);
}

// Applies `f` to each word.
template <class Function>
DEVICE uint4 each_word(const Function& f) {
    return {f(0), f(1), f(2), f(3)};
}

// Formats with eight f16 steps as head.
struct TileOfSteps {
    enum : u32 { AS_IS = 0, OF_16 = 0 };
    template <int COUNT>
    DEVICE void scales(const Pieces<COUNT>& raw, u32 row, const u8*, u32 quarter, float2* out, float&) {
        u32 two = reinterpret_cast<const u32*>(&raw.row(0, row))[quarter];
        float first = half_to_float(two), second = half_to_float(two >> 16);
        out[0] = {first, __fmul_rn(-bias(), first)};
        out[1] = {second, __fmul_rn(-bias(), second)};
    }
};

template <>
struct Tile<Q8_0> : TileOfSteps {
    enum : u32 { AS_IS = 1 };
};

// For formats whose `Tile<F>::bytes` converts a block of a row to 32 signed bytes.
template <class F>
struct TileByBlocks {
    template <int COUNT>
    DEVICE void unpack(const Pieces<COUNT>& raw, u32 chunk, u32 row, Bytes& to) {
#pragma unroll
        for (u32 b = 2 * chunk; b < 2 * chunk + 2; b++) {
            u32 w[8];
            Tile<F>::bytes(raw, b, row, w);
            to.row(2 * b, row) = {w[0], w[1], w[2], w[3]};
            to.row(2 * b + 1, row) = {w[4], w[5], w[6], w[7]};
        }
    }
};

// Converts bytes with a sign bit to signed bytes.
template <u32 SIGN>
DEVICE u32 extend(u32 v) {
    return (v & SIGN * 0x01010101u) * ((256 - 2 * SIGN) / SIGN) + v;
}

template <>
struct Tile<Q6_K> {
    enum : u32 { AS_IS = 0, OF_16 = 1 };
    template <int COUNT>
    DEVICE void scales(const Pieces<COUNT>& raw, u32 row, const u8* tail, u32 quarter, float2* out, float& begin) {
        u32 four = reinterpret_cast<const u32*>(&raw.row(0, row))[quarter];
        Q6_K::Head of = {half_to_float(*reinterpret_cast<const u16*>(tail)), sum_of_4(dot4(four, 0x01010101u, 0))};
        out[0] = {Q6_K::scale(of, four, 0), Q6_K::scale(of, four, 1)};
        out[1] = {Q6_K::scale(of, four, 2), Q6_K::scale(of, four, 3)};
        if (quarter == 0) begin = Q6_K::begin(of);
    }
    // Sign-extends the lower six bits of each byte; the highest bits of `signs` are the signs.
    DEVICE u32 extend(u32 six, u32 signs) {
        u32 above, out;
        asm("prmt.b32 %0, %1, %1, 0xba98;" : "=r"(above) : "r"(signs));
        asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(out) : "r"(six), "r"(above), "r"(0x3f3f3f3fu));
        return out;
    }
    template <int COUNT>
    DEVICE void unpack(const Pieces<COUNT>& raw, u32 chunk, u32 row, Bytes& to) {
        uint4 a = raw.row(Q6_K::HEAD + 3 * chunk, row), b = raw.row(Q6_K::HEAD + 3 * chunk + 1, row),
              c = raw.row(Q6_K::HEAD + 3 * chunk + 2, row);
        to.row(4 * chunk, row) = each_word([&](int i) { return extend(word(a, i) >> 2, word(a, i)); });
        to.row(4 * chunk + 1, row) = each_word([&](int i) { return extend(word(b, i) >> 2, word(b, i)); });
        to.row(4 * chunk + 2, row) = each_word([&](int i) { return extend(word(c, i) >> 2, word(c, i)); });
        to.row(4 * chunk + 3, row) = each_word([&](int i) {
            u32 six = ((word(a, i) << 4) & 0x30303030u) | ((word(b, i) << 2) & 0x0c0c0c0cu) | (word(c, i) & 0x03030303u);
            return extend(six, word(a, i) << 6);
        });
    }
};

struct TileWithMinimum {
    enum : u32 { AS_IS = 0, OF_16 = 0 };
    template <int COUNT>
    DEVICE void scales(const Pieces<COUNT>& raw, u32 row, const u8*, u32 quarter, float2* out, float& begin) {
        uint4 v = raw.row(0, row);
        // As `WithMinimum::head`, which reads global memory.
        WithMinimum::Head of = {{v.y & 0x3f3f3f3fu, (v.w & 0x0f0f0f0fu) | ((v.y >> 2) & 0x30303030u)},
                                {v.z & 0x3f3f3f3fu, ((v.w >> 4) & 0x0f0f0f0fu) | ((v.z >> 2) & 0x30303030u)},
                                half_to_float(v.x & 0xffff),
                                -half_to_float(v.x >> 16)};
        // Odd blocks use negated activations: the product of both negated values is the one to add.
        out[0] = {WithMinimum::times(of.scales[0], quarter, of.step), WithMinimum::times(of.minima[0], quarter, of.minus_least)};
        out[1] = {-WithMinimum::times(of.scales[1], quarter, of.step), WithMinimum::times(of.minima[1], quarter, of.minus_least)};
        if (quarter == 0) begin = WithMinimum::begin(of);
    }
};

template <>
struct Tile<Q4_K> : TileWithMinimum {
    // A pair of blocks: low nibbles, high nibbles.
    template <int COUNT>
    DEVICE void unpack(const Pieces<COUNT>& raw, u32 chunk, u32 row, Bytes& to) {
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            uint4 v = raw.row(Q4_K::HEAD + 2 * chunk + h, row);
            to.row(4 * chunk + h, row) = each_word([&](int i) { return word(v, i) & 0x0f0f0f0fu; });
            to.row(4 * chunk + 2 + h, row) = each_word([&](int i) { return (word(v, i) >> 4) & 0x0f0f0f0fu; });
        }
    }
};

template <>
struct Tile<Q5_K> : TileWithMinimum {
    template <int COUNT>
    DEVICE void unpack(const Pieces<COUNT>& raw, u32 chunk, u32 row, Bytes& to) {
        uint2 fifths = reinterpret_cast<const uint2*>(&raw.row(1 + chunk / 2, row))[chunk % 2];
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            uint4 v = raw.row(Q5_K::HEAD + 2 * chunk + h, row);
            auto fifth = [&](u32 bits, int i) {
                int shift = 4 - i - 4 * static_cast<int>(h);
                return (shift >= 0 ? bits << shift : bits >> -shift) & 0x10101010u;
            };
            to.row(4 * chunk + h, row) = each_word([&](int i) { return (word(v, i) & 0x0f0f0f0fu) | fifth(fifths.x, i); });
            to.row(4 * chunk + 2 + h, row) =
                each_word([&](int i) { return ((word(v, i) >> 4) & 0x0f0f0f0fu) | fifth(fifths.y, i); });
        }
    }
};
