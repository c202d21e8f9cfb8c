// Rotary embedding: the table of cosines and sines, the rotation of a head, keys and values into
// their caches.
//
// A cache is f16 of [slots][kv heads][capacity][dim], capacity rounded up to whole tiles of 32
// positions. Values lie row by row; keys in tiles, [capacity / 32][dim / 8][32][8]: lanes that take a
// position each read neighbouring 16-byte pieces. In a ring a position lies where it does modulo the capacity.
#pragma once
#include "base.cuh"
#include "params.cuh"
#include "trig.cuh"

enum : u32 { TILE = 32 };

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

// Elements 0 and 1 of pair i.
DEVICE u32 pair_first(const AttentionParams& p, u32 i) { return p.interleaved ? 2 * i : i; }
DEVICE u32 pair_second(const AttentionParams& p, u32 i) { return p.interleaved ? 2 * i + 1 : i + p.rotated / 2; }

// Normalises (unless `norm` is null) one head with the lanes of one warp and rotates its first `rotated` values;
// `store` takes element and value.
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

// The slot and position of a row; false when either is outside the cache.
DEVICE bool place_of(const AttentionParams& p, u32 row, u32& slot, u32& position) {
    slot = static_cast<u32>(at<const i32>(p.slots)[row]);
    position = static_cast<u32>(at<const i32>(p.positions)[row]);
    return slot < p.slot_count && position < (p.ring ? 1u << 31 : p.capacity);
}

// Where a position lies in its slot.
DEVICE u32 stored_at(const AttentionParams& p, u32 position) { return p.ring ? position % p.capacity : position; }

// Element 0 of a head's keys or values in a cache.
DEVICE u64 cache_head(const AttentionParams& p, u32 slot, u32 kv_head) {
    return (static_cast<u64>(slot) * p.kv_heads + kv_head) * round_up(p.capacity, static_cast<u32>(TILE)) * p.dim;
}

// One warp: the rotated key of `kv_head` into the cache, then the value.
DEVICE void write_key(const AttentionParams& p, u32 row, u32 kv_head, u32 slot, u32 position) {
    u32 place = stored_at(p, position);
    u64 tile = cache_head(p, slot, kv_head) + static_cast<u64>(place / TILE) * TILE * p.dim;
    u16* keys = at<u16>(p.keys) + tile + place % TILE * 8;
    const float* k = at<const float>(p.k) + (static_cast<u64>(row) * p.kv_heads + kv_head) * p.dim;
    rotate_head(p, row, k, at<const float>(p.k_norm),
                [&](u32 i, float v) { keys[i / 8 * (TILE * 8) + i % 8] = float_to_half(v); });
}

DEVICE void write_value(const AttentionParams& p, u32 row, u32 kv_head, u32 slot, u32 position) {
    u64 row_of_slot = static_cast<u64>(stored_at(p, position)) * p.dim;
    u16* values = at<u16>(p.values) + cache_head(p, slot, kv_head) + row_of_slot;
    const float* v = at<const float>(p.v) + (static_cast<u64>(row) * p.kv_heads + kv_head) * p.dim;
#pragma unroll 1
    for (u32 i = threadIdx.x % 32; i < p.dim; i += 32) values[i] = float_to_half(v[i]);
}

// Queries rotated into `q_out` (none when `q` is null), keys rotated and values into their caches (none when there
// are no KV heads): one warp per head, grid y is the row. Heads are counted queries, keys, values. For chunks of a
// prompt, whose rows share a slot; in decode `attention_rope` does this itself.
extern "C" __global__ __launch_bounds__(128) void rope_kv(const __grid_constant__ AttentionParams p) {
    after_previous_launch();
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
    if (item < p.kv_heads) write_key(p, row, item, slot, position);
    else write_value(p, row, item - p.kv_heads, slot, position);
}
