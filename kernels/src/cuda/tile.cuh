// Weights as tensor cores take them: signed bytes in pieces of 16 columns, and the scales of a superblock as f32.
//
// `Tile` of a format gives
//   HEADS     pieces that a half of a superblock needs beside its quants
//   QUANTS    pieces of those
//   SCALES    scales of a superblock
//   AS_IS     whether quants are signed bytes as they lie
//   scales    of a superblock's row: a quarter of its scales and minima; what its sum starts from
//   unpack    of the half of a superblock of 8 panels, by 256 threads
#pragma once
#include "format.cuh"

template <class F>
struct Tile;

// Pieces of a panel's half superblock.
template <int COUNT>
struct Pieces {
    u8 bytes[COUNT][PIECE_STRIDE];

    __device__ __forceinline__ const u8* row(u32 piece, u32 i) const { return bytes[piece] + i * PIECE; }
    __device__ __forceinline__ u8* row(u32 piece, u32 i) { return bytes[piece] + i * PIECE; }
};

// 128 columns of signed bytes.
typedef Pieces<SUPERBLOCK / 2 / PIECE> Bytes;

// The sum of 4 neighbouring lanes' integers.
DEVICE i32 sum_of_4(i32 value) {
    value += __shfl_xor_sync(ALL_LANES, value, 1);
    return value + __shfl_xor_sync(ALL_LANES, value, 2);
}

template <>
struct Tile<Q8_0> {
    enum : u32 { HEADS = 1, QUANTS = 8, SCALES = 8, AS_IS = 1 };
    DEVICE void scales(const u8* head, const u8*, u32 quarter, float* scales, float*, float&) {
        u32 two = reinterpret_cast<const u32*>(head)[quarter];
        *reinterpret_cast<float2*>(scales + 2 * quarter) = {half_to_float(two), half_to_float(two >> 16)};
    }
};

template <>
struct Tile<Q6_K> {
    enum : u32 { HEADS = 1, QUANTS = 6, SCALES = 16, AS_IS = 0 };
    DEVICE void scales(const u8* head, const u8* tail, u32 quarter, float* scales, float*, float& begin) {
        u32 four = reinterpret_cast<const u32*>(head)[quarter];
        Q6_K::Head of = {half_to_float(*reinterpret_cast<const u16*>(tail)), sum_of_4(dot4(four, 0x01010101u, 0))};
        float4 out = {Q6_K::scale(of, four, 0), Q6_K::scale(of, four, 1), Q6_K::scale(of, four, 2), Q6_K::scale(of, four, 3)};
        *reinterpret_cast<float4*>(scales + 4 * quarter) = out;
        if (quarter == 0) begin = Q6_K::begin(of);
    }
    // The six bits of each byte, of two's complement, as a byte.
    DEVICE u32 extend(u32 six) { return (six & 0x20202020u) * 6 + six; }
    // A thread has 8 bytes of A, B and C each: of 64 columns of a row those of 32.
    DEVICE void unpack(const Pieces<HEADS + QUANTS>* raw, Bytes* to) {
        u32 panel = threadIdx.x / 32, chunk = threadIdx.x / 16 % 2, row = threadIdx.x / 2 % 8, at = threadIdx.x % 2 * 8;
        u32 words[3][2];
#pragma unroll
        for (u32 i = 0; i < 3; i++) {
            uint2 v = *reinterpret_cast<const uint2*>(raw[panel].row(HEADS + 3 * chunk + i, row) + at);
            words[i][0] = v.x, words[i][1] = v.y;
        }
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 out[2];
#pragma unroll
            for (u32 w = 0; w < 2; w++) {
                u32 a = words[0][w], b = words[1][w], c = words[2][w];
                u32 fourth = ((a << 4) & 0x30303030u) | ((b << 2) & 0x0c0c0c0cu) | (c & 0x03030303u);
                out[w] = extend(i < 3 ? (words[i < 3 ? i : 0][w] >> 2) & 0x3f3f3f3fu : fourth);
            }
            *reinterpret_cast<uint2*>(to[panel].row(4 * chunk + i, row) + at) = {out[0], out[1]};
        }
    }
};

struct TileWithMinimum {
    enum : u32 { SCALES = 8, AS_IS = 0 };
    // Blocks `2 quarter` and the next.
    DEVICE void scales(const u8* head, const u8*, u32 quarter, float* scales, float* minima, float& begin) {
        // As `WithMinimum::head` has it of what lies in global memory.
        uint4 v = *reinterpret_cast<const uint4*>(head);
        WithMinimum::Head of = {{v.y & 0x3f3f3f3fu, (v.w & 0x0f0f0f0fu) | ((v.y >> 2) & 0x30303030u)},
                                {v.z & 0x3f3f3f3fu, ((v.w >> 4) & 0x0f0f0f0fu) | ((v.z >> 2) & 0x30303030u)},
                                half_to_float(v.x & 0xffff),
                                -half_to_float(v.x >> 16)};
        // Odd blocks meet negated activations: the product of both negated is what is to be added.
        *reinterpret_cast<float2*>(scales + 2 * quarter) = {WithMinimum::times(of.scales[0], quarter, of.step),
                                                            -WithMinimum::times(of.scales[1], quarter, of.step)};
        *reinterpret_cast<float2*>(minima + 2 * quarter) = {WithMinimum::times(of.minima[0], quarter, of.minus_least),
                                                            WithMinimum::times(of.minima[1], quarter, of.minus_least)};
        if (quarter == 0) begin = WithMinimum::begin(of);
    }
};

template <>
struct Tile<Q4_K> : TileWithMinimum {
    enum : u32 { HEADS = 1, QUANTS = 4 };
    // A thread has a piece.
    DEVICE void unpack(const Pieces<HEADS + QUANTS>* raw, Bytes* to) {
        u32 panel = threadIdx.x / 32, piece = threadIdx.x / 8 % 4, row = threadIdx.x % 8;
        uint4 v = *reinterpret_cast<const uint4*>(raw[panel].row(HEADS + piece, row));
        // Two pieces of a pair of blocks: the lower nibbles' block, then the upper ones'.
        u8* low = to[panel].row(piece / 2 * 4 + piece % 2, row);
        *reinterpret_cast<uint4*>(low) = {v.x & 0x0f0f0f0fu, v.y & 0x0f0f0f0fu, v.z & 0x0f0f0f0fu, v.w & 0x0f0f0f0fu};
        *reinterpret_cast<uint4*>(low + 2 * PIECE_STRIDE) = {(v.x >> 4) & 0x0f0f0f0fu, (v.y >> 4) & 0x0f0f0f0fu,
                                                             (v.z >> 4) & 0x0f0f0f0fu, (v.w >> 4) & 0x0f0f0f0fu};
    }
};

template <>
struct Tile<Q5_K> : TileWithMinimum {
    // The second head is the fifth bits of the half's four blocks.
    enum : u32 { HEADS = 2, QUANTS = 4 };
    DEVICE void unpack(const Pieces<HEADS + QUANTS>* raw, Bytes* to) {
        u32 panel = threadIdx.x / 32, piece = threadIdx.x / 8 % 4, row = threadIdx.x % 8;
        uint4 v = *reinterpret_cast<const uint4*>(raw[panel].row(HEADS + piece, row));
        uint2 fifths = *reinterpret_cast<const uint2*>(raw[panel].row(1, row) + piece / 2 * 8);
        u32 low[4], high[4], shift = piece % 2 * 4;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            low[i] = (word(v, i) & 0x0f0f0f0fu) | (((fifths.x >> shift) << (4 - i)) & 0x10101010u);
            high[i] = ((word(v, i) >> 4) & 0x0f0f0f0fu) | (((fifths.y >> shift) << (4 - i)) & 0x10101010u);
        }
        u8* first = to[panel].row(piece / 2 * 4 + piece % 2, row);
        *reinterpret_cast<uint4*>(first) = {low[0], low[1], low[2], low[3]};
        *reinterpret_cast<uint4*>(first + 2 * PIECE_STRIDE) = {high[0], high[1], high[2], high[3]};
    }
};
