// KV cache: its layout, how values are written, and how they are read.
//
// Positions are stored in KV cache blocks; the block table lists the blocks of each slot. A ring
// has no table: a position is stored at its value modulo the capacity, a multiple of a tile. In a
// block or a ring, each KV head has its own keys and values, in tiles of 32 positions.
//
// f16: keys [dim / 8][32][8], so that lanes with consecutive positions read consecutive 16-byte
// pieces; values [32][dim]. Quantised: blocks of 32 values, each a code q, with one f16 scale d: d
// * (q - 128) for 8-bit codes, d * (q - 8) for 4-bit codes. Codes come first: keys in pieces of 16
// bytes as above, [dim * BITS / 128][32]; values [32][dim]. The low nibbles of a word come first.
// Scales follow: keys [dim / 32][32], values [32][dim / 32].
#pragma once
#include "base.cuh"

enum : u32 { NOWHERE = ~0u, MOST_DIM = 512 };

// KV cache block of a slot's position, from the block table.
DEVICE u32 block_of(const AttentionParams& p, u32 slot, u32 position) {
    return at<const u32>(p.blocks)[slot * p.entries + position / CACHE_BLOCK];
}

// Slot and position of a row; false if either is outside the cache, or the position has no block.
DEVICE bool place_of(const AttentionParams& p, u32 row, u32& slot, u32& position) {
    slot = static_cast<u32>(at<const i32>(p.slots)[row]);
    position = static_cast<u32>(at<const i32>(p.positions)[row]);
    if (slot >= p.slot_count || position >= (p.entries ? p.capacity : 1u << 31)) return false;
    return !p.entries || block_of(p, slot, position) != NOWHERE;
}

// Reads N words, aligned to 4 * N or 16 bytes.
template <int N>
DEVICE void read_words(const u8* from, u32* words) {
    if constexpr (N >= 4) {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            uint4 v = reinterpret_cast<const uint4*>(from)[i / 4];
            words[i] = v.x, words[i + 1] = v.y, words[i + 2] = v.z, words[i + 3] = v.w;
        }
    } else if constexpr (N == 2) {
        uint2 v = *reinterpret_cast<const uint2*>(from);
        words[0] = v.x, words[1] = v.y;
    } else {
        words[0] = *reinterpret_cast<const u32*>(from);
    }
}

// Layout for f16 values (BITS = 16), or for codes of 8 or 4 bits.
template <u32 BITS>
struct Cache {
    enum : u32 { CODED = BITS < 16, OFFSET = 1 << (BITS - 1) };
    // Words of N consecutive values as read: values or codes, then the scale.
    template <int N>
    struct Words {
        enum : u32 { NUMBERS = N * BITS < 32 ? 1 : N * BITS / 32, ALL = NUMBERS + CODED };
    };

    // Bytes of a tile's values or codes, and of the whole tile.
    DEVICE u32 number_bytes(u32 dim) { return CACHE_TILE * BITS / 8 * dim; }
    DEVICE u32 tile_bytes(u32 dim) { return number_bytes(dim) + (CODED ? 2 * dim : 0); }

    // First tile of a head in the block of a visible position (or in the slot's ring), and the tile
    // of that position.
    DEVICE u32 head_of(const AttentionParams& p, u32 slot, u32 kv_head, u32 position) {
        u32 piece = p.entries ? block_of(p, slot, position) : slot;
        return (piece * p.kv_heads + kv_head) * ((p.entries ? CACHE_BLOCK : p.capacity) / CACHE_TILE);
    }
    DEVICE u8* tile_of(const AttentionParams& p, u64 cache, u32 head, u32 position) {
        u32 tile = head + (p.entries ? position % CACHE_BLOCK : position % p.capacity) / CACHE_TILE;
        return at<u8>(cache) + static_cast<u64>(tile) * tile_bytes(p.dim);
    }

    // Reads N values of a tile's key, starting at `from`, a multiple of N. N is 16 or 32.
    template <int N>
    DEVICE void read_key(const u8* tile, u32 dim, u32 place, u32 from, u32* words) {
        enum : u32 { PIECE = 128 / BITS, READ = PIECE < N ? PIECE : N, NUMBERS = Words<N>::NUMBERS };
        const u8* pieces = tile + (from / PIECE * CACHE_TILE + place) * 16 + from % PIECE * BITS / 8;
#pragma unroll
        for (u32 i = 0; i < N / READ; i++)
            if (CODED || from + i * PIECE < dim)
                read_words<READ * BITS / 32>(pieces + i * (CACHE_TILE * 16), words + READ * BITS / 32 * i);
        if (CODED) words[NUMBERS] = *reinterpret_cast<const u16*>(tile + number_bytes(dim) + (from / 32 * CACHE_TILE + place) * 2);
    }
    // Converts 8 of the N values.
    template <int N>
    DEVICE void widen_key(const u32* words, u32 eights, float (&out)[8]) {
        widen<8>(words + eights * BITS / 4, CODED ? words[Words<N>::NUMBERS] : 0, out);
    }

    // Address of a column of a tile's value and of its scale, and the distance between positions.
    DEVICE u32 row_bytes(u32 dim) { return dim * BITS / 8; }
    DEVICE u32 scale_bytes(u32 dim) { return dim / 32 * 2; }
    DEVICE const u8* number_at(const u8* tile, u32 dim, u32 place, u32 column) {
        return tile + column * BITS / 32 * 4 + place * row_bytes(dim);
    }
    DEVICE const u8* scale_at(const u8* tile, u32 dim, u32 place, u32 column) {
        return tile + number_bytes(dim) + column / 32 * 2 + place * scale_bytes(dim);
    }
    // Reads N consecutive values of a column that is a multiple of N.
    template <int N>
    DEVICE void read_value(const u8* number, const u8* scale, u32* words) {
        read_words<Words<N>::NUMBERS>(number, words);
        if (CODED) words[Words<N>::NUMBERS] = *reinterpret_cast<const u16*>(scale);
    }
    template <int N>
    DEVICE void widen_value(const u32* words, u32 column, float (&out)[N]) {
        u32 scale = CODED ? words[Words<N>::NUMBERS] : 0;
        // Four nibbles are half a word.
        u32 half = words[0] >> column % 8;
        widen<N>(N * BITS < 32 ? &half : words, scale, out);
    }
    // Sets values to -0, which changes no sum, not even one of only -0.
    template <int N>
    DEVICE void no_value(u32* words) {
#pragma unroll
        for (u32 i = 0; i < Words<N>::NUMBERS; i++) words[i] = BITS == 16 ? 0x80008000 : BITS == 8 ? 0x80808080 : 0x88888888;
        if (CODED) words[Words<N>::NUMBERS] = 0x8000;
    }

    // Converts words to values.
    template <int N>
    DEVICE void widen(const u32* words, u32 scale, float* out) {
        float d = CODED ? half_to_float(scale) : 0.0f;
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (BITS == 16) {
                out[i] = half_to_float(words[i / 2] >> i % 2 * 16);
            } else {
                u32 codes = BITS == 8 ? words[i / 4] : words[i / 8] >> i % 8 / 4 * 4 & 0x0f0f0f0f;
                // 2^23 + q
                float level = __uint_as_float(__byte_perm(codes, 0x4b000000, 0x7440 + i % 4));
                out[i] = __fmul_rn(__fsub_rn(level, 8388608.0f + OFFSET), d);
            }
        }
    }

    // One warp quantises a head's values into blocks of a tile's key or value, as ggml's reference
    // does.
    template <bool KEY>
    DEVICE void write_blocks(u8* tile, u32 dim, u32 place, const float* x) {
        enum : u32 { BYTES = 32 * BITS / 8 };
        u32 lane = threadIdx.x % 32;
        u16* scales = reinterpret_cast<u16*>(tile + number_bytes(dim));
#pragma unroll 1
        for (u32 b = 0; b < dim / 32; b++) {
            u32 scale, byte = lane, code = code_of(x[32 * b + lane], scale);
            if (BITS == 4) {
                code |= __shfl_xor_sync(ALL_LANES, code, 4) << 4;
                byte = lane / 8 * 4 + lane % 4;
            }
            u32 row = KEY ? ((b * BYTES + byte) / 16 * CACHE_TILE + place) * 16 + byte % 16 : (place * (dim / 32) + b) * BYTES + byte;
            if (BITS == 8 || lane % 8 < 4) tile[row] = static_cast<u8>(code);
            if (lane == 0) scales[KEY ? b * CACHE_TILE + place : place * (dim / 32) + b] = static_cast<u16>(scale);
        }
    }

    // Code of the lane's value in its block, and the block's scale: NaN if a value is not finite.
    DEVICE u32 code_of(float x, u32& scale) {
        float most = fabsf(x);
#pragma unroll
        for (int d = 16; d > 0; d /= 2) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, d));
        // First value of the largest magnitude.
        u32 first = __ffs(__ballot_sync(ALL_LANES, fabsf(x) == most)) - 1;
        float extreme = __shfl_sync(ALL_LANES, x, first % 32);
        float d = BITS == 8 ? __fdiv_rn(most, 127.0f) : __fdiv_rn(most == 0.0f ? 0.0f : extreme, -8.0f);
        scale = float_to_half(d);
        if (__any_sync(ALL_LANES, x != x) || (scale & 0x7c00) == 0x7c00) scale = 0x7e00;
        float inverse = __fdiv_rn(1.0f, d);
        float y = is_finite(inverse) ? __fmul_rn(x, inverse) : 0.0f;
        if (BITS == 4) return max(min(__float2int_rz(__fadd_rn(y, 8.5f)), 15), 0);
        // Rounds to nearest, ties away from zero.
        i32 whole = __float2int_rz(y);
        float rest = __fsub_rn(y, static_cast<float>(whole));
        return whole + (rest >= 0.5f) - (rest <= -0.5f) + 128;
    }
};
