// The cache of keys and values: how they lie there, how they get in, how they are read.
//
// Positions lie in blocks, of which a table says for each slot which ones are whose. In a ring, which has no table, a
// position lies where it does modulo the capacity, a multiple of a tile. Of a block, as of a slot's ring, each KV head
// has keys and values of its own, in tiles of 32 positions that fill it.
//
// Numbers of f16: keys [dim / 8][32][8], so that lanes that take a position each read neighbouring 16-byte pieces;
// values [32][dim]. Blocks of 32 numbers, each a code q and all a scale d of f16, are d * (q - 128) with codes of 8
// bits, d * (q - 8) with codes of 4. Codes come first: of keys pieces of 16 bytes as above, [dim * BITS / 128][32], of
// values [32][dim]. Of eight nibbles that are a word the low ones come first. Then scales: of keys [dim / 32][32], of
// values [32][dim / 32].
#pragma once
#include "base.cuh"
#include "params.cuh"

enum : u32 { TILE = 32, CACHE_BLOCK = 128, NOWHERE = ~0u, MOST_DIM = 512 };

// The block of a slot that holds a position of the capacity, where there is a table.
DEVICE u32 block_of(const AttentionParams& p, u32 slot, u32 position) {
    return at<const u32>(p.blocks)[slot * p.entries + position / CACHE_BLOCK];
}

// The slot and position of a row; false when either is outside the cache, or the position in no block.
DEVICE bool place_of(const AttentionParams& p, u32 row, u32& slot, u32& position) {
    slot = static_cast<u32>(at<const i32>(p.slots)[row]);
    position = static_cast<u32>(at<const i32>(p.positions)[row]);
    if (slot >= p.slot_count || position >= (p.entries ? p.capacity : 1u << 31)) return false;
    return !p.entries || block_of(p, slot, position) != NOWHERE;
}

// N words, 4 * N bytes aligned or 16.
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

// Of numbers of 16 bits, which are f16, or of codes of 8 or 4.
template <u32 BITS>
struct Cache {
    enum : u32 { CODED = BITS < 16, OFFSET = 1 << (BITS - 1) };
    // Words of N neighbouring numbers as they are read: numbers or codes, then the scale.
    template <int N>
    struct Words {
        enum : u32 { NUMBERS = N * BITS < 32 ? 1 : N * BITS / 32, ALL = NUMBERS + CODED };
    };

    // Bytes of a tile's numbers or codes, and of all of it.
    DEVICE u32 number_bytes(u32 dim) { return TILE * BITS / 8 * dim; }
    DEVICE u32 tile_bytes(u32 dim) { return number_bytes(dim) + (CODED ? 2 * dim : 0); }

    // A head's first tile in the block of a position that a row of the slot sees, or in the slot's ring; and the tile
    // of such a position there.
    DEVICE u32 head_of(const AttentionParams& p, u32 slot, u32 kv_head, u32 position) {
        u32 piece = p.entries ? block_of(p, slot, position) : slot;
        return (piece * p.kv_heads + kv_head) * ((p.entries ? CACHE_BLOCK : p.capacity) / TILE);
    }
    DEVICE u8* tile_of(const AttentionParams& p, u64 cache, u32 head, u32 position) {
        u32 tile = head + (p.entries ? position % CACHE_BLOCK : position % p.capacity) / TILE;
        return at<u8>(cache) + static_cast<u64>(tile) * tile_bytes(p.dim);
    }

    // N numbers of a tile's key from the `from`-th on: 32 or 16, a multiple of which that is.
    template <int N>
    DEVICE void read_key(const u8* tile, u32 dim, u32 place, u32 from, u32* words) {
        enum : u32 { PIECE = 128 / BITS, READ = PIECE < N ? PIECE : N, NUMBERS = Words<N>::NUMBERS };
        const u8* pieces = tile + (from / PIECE * TILE + place) * 16 + from % PIECE * BITS / 8;
#pragma unroll
        for (u32 i = 0; i < N / READ; i++)
            if (CODED || from + i * PIECE < dim)
                read_words<READ * BITS / 32>(pieces + i * (TILE * 16), words + READ * BITS / 32 * i);
        if (CODED) words[NUMBERS] = *reinterpret_cast<const u16*>(tile + number_bytes(dim) + (from / 32 * TILE + place) * 2);
    }
    // Eight of the N, of which there are so many before.
    template <int N>
    DEVICE void widen_key(const u32* words, u32 eights, float (&out)[8]) {
        widen<8>(words + eights * BITS / 4, CODED ? words[Words<N>::NUMBERS] : 0, out);
    }

    // Where a column of a tile's value lies and its scale does, and bytes from a position's to the next one's.
    DEVICE u32 row_bytes(u32 dim) { return dim * BITS / 8; }
    DEVICE u32 scale_bytes(u32 dim) { return dim / 32 * 2; }
    DEVICE const u8* number_at(const u8* tile, u32 dim, u32 place, u32 column) {
        return tile + column * BITS / 32 * 4 + place * row_bytes(dim);
    }
    DEVICE const u8* scale_at(const u8* tile, u32 dim, u32 place, u32 column) {
        return tile + number_bytes(dim) + column / 32 * 2 + place * scale_bytes(dim);
    }
    // N neighbouring numbers, a multiple of which is the first one's column.
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
    // Minus zeroes: as values they change no sum, not even that of nothing but minus zeroes.
    template <int N>
    DEVICE void no_value(u32* words) {
#pragma unroll
        for (u32 i = 0; i < Words<N>::NUMBERS; i++) words[i] = BITS == 16 ? 0x80008000 : BITS == 8 ? 0x80808080 : 0x88888888;
        if (CODED) words[Words<N>::NUMBERS] = 0x8000;
    }

    // What numbers or codes stand for.
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

    // One warp: a head's numbers into blocks of a tile's key or value, as ggml's reference makes them.
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
            u32 row = KEY ? ((b * BYTES + byte) / 16 * TILE + place) * 16 + byte % 16 : (place * (dim / 32) + b) * BYTES + byte;
            if (BITS == 8 || lane % 8 < 4) tile[row] = static_cast<u8>(code);
            if (lane == 0) scales[KEY ? b * TILE + place : place * (dim / 32) + b] = static_cast<u16>(scale);
        }
    }

    // The code of the lane's number of a block, and the block's scale: NaN where one cannot be stored.
    DEVICE u32 code_of(float x, u32& scale) {
        float most = fabsf(x);
#pragma unroll
        for (int d = 16; d > 0; d /= 2) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, d));
        // The first of the largest magnitude.
        u32 first = __ffs(__ballot_sync(ALL_LANES, fabsf(x) == most)) - 1;
        float extreme = __shfl_sync(ALL_LANES, x, first % 32);
        float d = BITS == 8 ? __fdiv_rn(most, 127.0f) : __fdiv_rn(most == 0.0f ? 0.0f : extreme, -8.0f);
        scale = float_to_half(d);
        if (__any_sync(ALL_LANES, x != x) || (scale & 0x7c00) == 0x7c00) scale = 0x7e00;
        float inverse = __fdiv_rn(1.0f, d);
        float y = is_finite(inverse) ? __fmul_rn(x, inverse) : 0.0f;
        if (BITS == 4) return max(min(__float2int_rz(__fadd_rn(y, 8.5f)), 15), 0);
        // To nearest, halves away from zero.
        i32 whole = __float2int_rz(y);
        float rest = __fsub_rn(y, static_cast<float>(whole));
        return whole + (rest >= 0.5f) - (rest <= -0.5f) + 128;
    }
};
