// Rotary position embedding (RoPE): table of cosines and sines, rotation of heads, writes of keys
// and values to the cache.
#pragma once
#include "cache.cuh"
#include "trig.cuh"

// out[row] = cosines, then sines, of position * frequency, times magnitude. Grid x is the row.
extern "C" __global__ __launch_bounds__(128) void rope_table(const __grid_constant__ RopeTableParams p) {
    after_previous_launch();
    float position = static_cast<float>(at<const i32>(p.positions)[blockIdx.x]);
    float* out = at<float>(p.out) + static_cast<u64>(blockIdx.x) * 2 * p.half;
    for (u32 i = threadIdx.x; i < p.half; i += blockDim.x) {
        float sine, cosine;
        sin_cos(position, at<const float>(p.frequencies)[i], sine, cosine);
        out[i] = __fmul_rn(cosine, p.magnitude);
        out[p.half + i] = __fmul_rn(sine, p.magnitude);
    }
}

// Index of the first element of pair i.
DEVICE u32 pair_first(const AttentionParams& p, u32 i) { return p.interleaved ? 2 * i : i; }
DEVICE u32 pair_second(const AttentionParams& p, u32 i) { return p.interleaved ? 2 * i + 1 : i + p.rotated / 2; }

// One warp normalises a head (unless `norm` is null) and rotates its first `rotated` values. Calls
// `store` with element and value.
template <class Store>
DEVICE void rotate_head(const AttentionParams& p, u32 row, const float* x, const float* norm, Store store) {
    u32 lane = threadIdx.x % 32, half = p.rotated / 2;
    float factor = 1.0f;
    if (norm) factor = root_mean_inverse(squares_of_head(x, p.dim), p.dim, p.eps);
    const float* table = at<const float>(p.table) + static_cast<u64>(row) * p.rotated;
#pragma unroll 1
    for (u32 i = lane; i < half; i += 32) {
        u32 first = pair_first(p, i), second = pair_second(p, i);
        float a = x[first], b = x[second];
        if (norm) {
            a = __fmul_rn(__fmul_rn(a, factor), norm[first]);
            b = __fmul_rn(__fmul_rn(b, factor), norm[second]);
        }
        float cosine = table[i], sine = table[half + i];
        store(first, __fmaf_rn(a, cosine, __fsub_rn(0.0f, __fmul_rn(b, sine))));
        store(second, __fmaf_rn(a, sine, __fmul_rn(b, cosine)));
    }
#pragma unroll 1
    for (u32 i = p.rotated + lane; i < p.dim; i += 32) store(i, norm ? __fmul_rn(__fmul_rn(x[i], factor), norm[i]) : x[i]);
}

// One warp writes the rotated key of `kv_head` to the cache, then the value. `head` is scratch for
// quantisation.
template <u32 BITS>
DEVICE void write_key(const AttentionParams& p, u32 row, u32 kv_head, u32 slot, u32 position, float* head) {
    typedef Cache<BITS> Cache;
    u8* tile = Cache::tile_of(p, p.keys, Cache::head_of(p, slot, kv_head, position), position);
    u32 place = position % CACHE_TILE;
    u16* keys = reinterpret_cast<u16*>(tile) + place * 8;
    const float* k = at<const float>(p.k) + (static_cast<u64>(row) * p.kv_heads + kv_head) * p.dim;
    rotate_head(p, row, k, at<const float>(p.k_norm), [&](u32 i, float v) {
        if (Cache::CODED) head[i] = v;
        else keys[i / 8 * (CACHE_TILE * 8) + i % 8] = float_to_half(v);
    });
    if constexpr (Cache::CODED) {
        __syncwarp();
        Cache::template write_blocks<true>(tile, p.dim, place, head);
    }
}

template <u32 BITS>
DEVICE void write_value(const AttentionParams& p, u32 row, u32 kv_head, u32 slot, u32 position) {
    typedef Cache<BITS> Cache;
    u8* tile = Cache::tile_of(p, p.values, Cache::head_of(p, slot, kv_head, position), position);
    u32 place = position % CACHE_TILE;
    const float* v = at<const float>(p.v) + (static_cast<u64>(row) * p.kv_heads + kv_head) * p.dim;
    if constexpr (Cache::CODED) {
        Cache::template write_blocks<false>(tile, p.dim, place, v);
    } else {
        u16* values = reinterpret_cast<u16*>(tile) + place * p.dim;
#pragma unroll 1
        for (u32 i = threadIdx.x % 32; i < p.dim; i += 32) values[i] = float_to_half(v[i]);
    }
}

// Writes rotated queries to `q_out` (none if `q` is null) and rotated keys and values to the cache
// (none without KV heads). One warp per head: queries, keys, values; grid y is the row. For prompt
// chunks, whose rows share a slot; in decode attention does this itself.
template <u32 BITS>
DEVICE void rope_kv(const AttentionParams& p) {
    __shared__ float heads[4][Cache<BITS>::CODED ? MOST_DIM : 1];
    u32 item = blockIdx.x * 4 + threadIdx.x / 32, row = blockIdx.y;
    u32 queries = p.q ? p.heads : 0;
    if (item < queries) {
        u64 head = (static_cast<u64>(row) * p.heads + item) * p.dim;
        float* out = at<float>(p.q_out) + head;
        rotate_head(p, row, at<const float>(p.q) + head, at<const float>(p.q_norm), [&](u32 i, float v) { out[i] = v; });
        return;
    }
    item -= queries;
    u32 slot, position;
    if (item >= 2 * p.kv_heads || !place_of(p, row, slot, position)) return;
    if (item < p.kv_heads) write_key<BITS>(p, row, item, slot, position, heads[threadIdx.x / 32]);
    else write_value<BITS>(p, row, item - p.kv_heads, slot, position);
}

#define ROPE_KV(name, bits)                                                                                 \
    extern "C" __global__ __launch_bounds__(128) void name(const __grid_constant__ AttentionParams p) { \
        after_previous_launch();                                                                            \
        rope_kv<bits>(p);                                                                                   \
    }
