// Softmax attention of one row's query heads over one KV head's cache, its positions split over
// blocks; the block that finishes last combines the parts in order.
//
// Grid: x = kv head * passes + pass, y = split, z = row. A block serves HEADS query heads of the KV
// head's group and reads its span of the cache once. A position's dim is shared by LANES lanes of 8
// values each; groups of lanes walk over the span, four positions at a time, each with its own
// running maximum, sum and result; groups, warps and splits are merged in fixed order.
//
// How many splits are active is decided by the position: a span is at least MIN_SPAN positions. A
// result depends on the position, `splits`, LANES and WARPS, on nothing else.
//
// With ROPE the block first normalises and rotates its queries, and the one whose span holds the
// row's position writes key and value (rows must then be in different slots).
#pragma once
#include "rope.cuh"

enum : u32 { MIN_SPAN = 64, AHEAD = 4 };

// A running softmax: sum of e^(s - max), and the maximum.
struct Softmax {
    float max, sum;
    // The factor on a part: 0 where it has seen nothing, NaN where it is a NaN, also when nothing else has been seen.
    DEVICE float factor(float from, float to) { return exp_fast(__fsub_rn(from, to == -infinity() ? 0.0f : to)); }
};

template <int LANES, int HEADS, int WARPS, bool ROPE>
struct Attention {
    enum : u32 { THREADS = WARPS * 32, GROUPS = THREADS / LANES, DIM_MAX = LANES * 8 };

    DEVICE void eight(const uint4& halves, float (&out)[8]) {
        u32 words[4] = {halves.x, halves.y, halves.z, halves.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            out[2 * i] = half_to_float(words[i]);
            out[2 * i + 1] = half_to_float(words[i] >> 16);
        }
    }

    DEVICE void run(const AttentionParams& p) {
        __shared__ float queries[HEADS][DIM_MAX];
        __shared__ float parts[WARPS][HEADS][DIM_MAX];
        __shared__ float maxima[WARPS][HEADS], totals[WARPS][HEADS];

        u32 group_heads = p.heads / p.kv_heads;
        u32 passes = group_heads / HEADS;
        u32 kv_head = blockIdx.x / passes;
        u32 first_head = kv_head * group_heads + blockIdx.x % passes * HEADS;
        u32 split = blockIdx.y, row = blockIdx.z;
        u64 row_heads = static_cast<u64>(row) * p.heads + first_head;
        float* out = at<float>(p.out) + row_heads * p.dim;

        u32 slot, position;
        if (!place_of(p, row, slot, position)) {
            if (split == 0)
#pragma unroll 1
                for (u32 i = threadIdx.x; i < HEADS * p.dim; i += THREADS) out[i] = 0.0f;
            return;
        }
        u32 count = position + 1;
        u32 span = max(static_cast<u32>(MIN_SPAN), round_up((count + p.splits - 1) / p.splits, 16u));
        u32 active = (count + span - 1) / span;
        if (split >= active) return;
        u32 start = split * span, end = min(count, start + span);

        // Queries, and in the last span the new key and value.
        u32 warp = threadIdx.x / 32;
        const float* q = at<const float>(p.q) + row_heads * p.dim;
#pragma unroll 1
        for (u32 item = warp; item < HEADS + 2; item += WARPS) {
            if (item < HEADS) {
                if constexpr (ROPE) {
                    rotate_head(p, row, q + item * p.dim, at<const float>(p.q_norm),
                                [&](u32 i, float v) { queries[item][i] = v; });
                } else {
#pragma unroll 1
                    for (u32 i = threadIdx.x % 32; i < p.dim; i += 32) queries[item][i] = q[item * p.dim + i];
                }
            } else if (ROPE && end == count) {
                if (item == HEADS) write_key(p, row, kv_head, slot, position);
                else write_value(p, row, kv_head, slot, position);
            }
        }
        __syncthreads();

        u32 lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
        u32 d = lane * 8;
        bool inside = d < p.dim;
        const u16* keys = at<const u16>(p.keys) + cache_head(p, slot, kv_head) + d;
        const u16* values = at<const u16>(p.values) + cache_head(p, slot, kv_head) + d;
        float query[HEADS][8], result[HEADS][8] = {};
        Softmax state[HEADS];
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            state[h] = {-infinity(), 0.0f};
#pragma unroll
            for (int i = 0; i < 8; i++) query[h][i] = inside ? queries[h][d + i] : 0.0f;
        }

#pragma unroll 1
        for (u32 base = start; base < end; base += GROUPS * AHEAD) {
            uint4 k[AHEAD], v[AHEAD];
#pragma unroll
            for (int a = 0; a < AHEAD; a++) {
                u32 at_position = base + a * GROUPS + group;
                k[a] = v[a] = {0, 0, 0, 0};
                if (inside && at_position < end) {
                    k[a] = *reinterpret_cast<const uint4*>(row_of(keys, at_position, p.dim));
                    v[a] = *reinterpret_cast<const uint4*>(row_of(values, at_position, p.dim));
                }
            }
            float score[AHEAD][HEADS];
#pragma unroll
            for (int a = 0; a < AHEAD; a++) {
                bool seen = base + a * GROUPS + group < end;
                float key[8];
                eight(k[a], key);
#pragma unroll
                for (int h = 0; h < HEADS; h++) {
                    float sum = 0.0f;
#pragma unroll
                    for (int i = 0; i < 8; i++) sum = __fmaf_rn(query[h][i], key[i], sum);
#pragma unroll
                    for (int x = LANES / 2; x > 0; x /= 2)
                        sum = __fadd_rn(sum, __shfl_xor_sync(ALL_LANES, sum, x));
                    score[a][h] = seen ? __fmul_rn(sum, p.scale) : -infinity();
                }
            }
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                float largest = state[h].max;
#pragma unroll
                for (int a = 0; a < AHEAD; a++) largest = fmaxf(largest, score[a][h]);
                float old = Softmax::factor(state[h].max, largest);
                state[h].max = largest;
                state[h].sum = __fmul_rn(state[h].sum, old);
#pragma unroll
                for (int i = 0; i < 8; i++) result[h][i] = __fmul_rn(result[h][i], old);
#pragma unroll
                for (int a = 0; a < AHEAD; a++) {
                    score[a][h] = Softmax::factor(score[a][h], largest);
                    state[h].sum = __fadd_rn(state[h].sum, score[a][h]);
                }
            }
#pragma unroll
            for (int a = 0; a < AHEAD; a++) {
                float value[8];
                eight(v[a], value);
#pragma unroll
                for (int h = 0; h < HEADS; h++) {
#pragma unroll
                    for (int i = 0; i < 8; i++) result[h][i] = __fmaf_rn(score[a][h], value[i], result[h][i]);
                }
            }
        }

        // Groups of a warp, then warps.
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
#pragma unroll
            for (int x = LANES; x < 32; x *= 2) {
                float other_max = __shfl_xor_sync(ALL_LANES, state[h].max, x);
                float other_sum = __shfl_xor_sync(ALL_LANES, state[h].sum, x);
                float largest = fmaxf(state[h].max, other_max);
                float mine = Softmax::factor(state[h].max, largest), theirs = Softmax::factor(other_max, largest);
                state[h].max = largest;
                state[h].sum = __fmaf_rn(state[h].sum, mine, __fmul_rn(other_sum, theirs));
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    float other = __shfl_xor_sync(ALL_LANES, result[h][i], x);
                    result[h][i] = __fmaf_rn(result[h][i], mine, __fmul_rn(other, theirs));
                }
            }
            if (threadIdx.x % 32 < LANES) {
#pragma unroll
                for (int i = 0; i < 8; i++) parts[warp][h][d + i] = result[h][i];
                if (lane == 0) maxima[warp][h] = state[h].max, totals[warp][h] = state[h].sum;
            }
        }
        __syncthreads();

        // Parts of [row][head][split]: first maximum and sum, then the values.
        float2* heads_of = at<float2>(p.partial);
        float* values_of = reinterpret_cast<float*>(heads_of + static_cast<u64>(p.rows) * p.heads * p.splits);
#pragma unroll 1
        for (u32 i = threadIdx.x; i < HEADS * p.dim; i += THREADS) {
            u32 h = i / p.dim, e = i % p.dim;
            float largest = maxima[0][h];
#pragma unroll
            for (int w = 1; w < WARPS; w++) largest = fmaxf(largest, maxima[w][h]);
            float sum = 0.0f, value = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                float factor = Softmax::factor(maxima[w][h], largest);
                sum = __fmaf_rn(totals[w][h], factor, sum);
                value = __fmaf_rn(parts[w][h][e], factor, value);
            }
            if (active == 1) {
                out[i] = __fdividef(value, sum);
            } else {
                u64 part = (row_heads + h) * p.splits + split;
                if (e == 0) heads_of[part] = {largest, sum};
                values_of[part * p.dim + e] = value;
            }
        }
        if (active == 1 || !last_block(at<u32>(p.counters) + row * gridDim.x + blockIdx.x, active)) return;

#pragma unroll 1
        for (u32 i = threadIdx.x; i < HEADS * p.dim; i += THREADS) {
            u64 part = (row_heads + i / p.dim) * p.splits;
            float largest = -infinity();
#pragma unroll 1
            for (u32 s = 0; s < active; s++) largest = fmaxf(largest, heads_of[part + s].x);
            float sum = 0.0f, value = 0.0f;
#pragma unroll 1
            for (u32 s = 0; s < active; s++) {
                float2 head = heads_of[part + s];
                float factor = Softmax::factor(head.x, largest);
                sum = __fmaf_rn(head.y, factor, sum);
                value = __fmaf_rn(values_of[(part + s) * p.dim + i % p.dim], factor, value);
            }
            out[i] = __fdividef(value, sum);
        }
    }
};

#define ATTENTION(name, lanes, heads, warps, rope)                                                           \
    extern "C" __global__ __launch_bounds__(warps * 32) void name(const __grid_constant__ AttentionParams p) { \
        Attention<lanes, heads, warps, rope>::run(p);                                                        \
    }
