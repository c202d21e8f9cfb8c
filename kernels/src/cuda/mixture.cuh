// Router, grouping and combination of an MoE layer. A pair is a row and one of its experts, best
// first; pairs of a row are consecutive.
#pragma once
#include "base.cuh"

// `orind_kernels::catalogue` has the same number.
enum : u32 { ROUTE_THREADS = 128 };

// Sort key of a value: NaN is the largest, and of equal values the lower index.
DEVICE u64 key_of(float value, u32 index) {
    u32 bits = value == 0.0f ? 0 : __float_as_uint(value);
    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    if (value != value) bits = 0xffffffffu;
    return static_cast<u64>(bits) << 32 | ~index;
}

// Maximum over a block, in every thread.
template <class T, class Larger>
DEVICE T largest_of_block(T value, Larger larger) {
    __shared__ T warps[ROUTE_THREADS / 32];
#pragma unroll
    for (int d = 16; d > 0; d /= 2) value = larger(value, __shfl_xor_sync(ALL_LANES, value, d));
    __syncthreads();
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    value = warps[0];
#pragma unroll
    for (int w = 1; w < ROUTE_THREADS / 32; w++) value = larger(value, warps[w]);
    return value;
}

// Chooses the experts of each row, best first, and their weights. A thread has every 128th expert.
// Grid x is the row.
extern "C" __global__ __launch_bounds__(ROUTE_THREADS) void route(const __grid_constant__ RouteParams p) {
    after_previous_launch();
    __shared__ float worth[MOST_EXPERTS];
    __shared__ u64 keys[MOST_EXPERTS];
    __shared__ u16 picked[MOST_EXPERTS];
    __shared__ float total;
    u32 thread = threadIdx.x;
    const float* logits = at<const float>(p.logits) + static_cast<u64>(blockIdx.x) * p.experts;
    const float* preference = at<const float>(p.preference);
    if (p.sigmoid) {
        for (u32 e = thread; e < p.experts; e += ROUTE_THREADS) worth[e] = sigmoid(logits[e]);
    } else {
        float most = -infinity();
        for (u32 e = thread; e < p.experts; e += ROUTE_THREADS) most = fmaxf(most, logits[e]);
        most = largest_of_block(most, [](float a, float b) { return fmaxf(a, b); });
        for (u32 e = thread; e < p.experts; e += ROUTE_THREADS) worth[e] = exponential(__fsub_rn(logits[e], most));
        __syncthreads();
        if (thread < 32) {
            float sum = 0.0f;
            for (u32 e = thread; thread < 16 && e < p.experts; e += 16) sum = __fadd_rn(sum, worth[e]);
#pragma unroll
            for (int d = 8; d > 0; d /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(ALL_LANES, sum, d));
            if (thread == 0) total = sum;
        }
        __syncthreads();
        for (u32 e = thread; e < p.experts; e += ROUTE_THREADS) worth[e] = __fdiv_rn(worth[e], total);
    }
    for (u32 e = thread; e < p.experts; e += ROUTE_THREADS)
        keys[e] = key_of(preference ? __fadd_rn(worth[e], preference[e]) : logits[e], e);
    u64 pair = static_cast<u64>(blockIdx.x) * p.count;
#pragma unroll 1
    for (u32 k = 0; k < p.count; k++) {
        u64 best = 0;
        for (u32 e = thread; e < p.experts; e += ROUTE_THREADS) best = max(best, keys[e]);
        best = largest_of_block(best, [](u64 a, u64 b) { return max(a, b); });
        u32 expert = ~static_cast<u32>(best);
        if (expert % ROUTE_THREADS != thread) continue;
        keys[expert] = 0;
        picked[k] = expert;
        at<u32>(p.chosen)[pair + k] = expert;
    }
    __syncthreads();
    if (thread == 0) {
        float sum = 0.0f;
        for (u32 k = 0; k < p.count; k++) sum = __fadd_rn(sum, worth[picked[k]]);
        for (u32 k = 0; k < p.count; k++) {
            float weight = worth[picked[k]];
            if (p.normalised) weight = __fdiv_rn(weight, sum);
            weight = __fmul_rn(weight, p.scale);
            if (p.scales) weight = __fmul_rn(weight, at<const float>(p.scales)[picked[k]]);
            at<float>(p.weights)[pair + k] = weight;
        }
    }
}

// Groups pairs by expert: writes the expert of each tile and the pair of each place; places without
// a pair are at the end of an expert's last tile and in unused tiles. The order of an expert's
// pairs is arbitrary and changes no result. One block.
extern "C" __global__ __launch_bounds__(ROUTE_THREADS) void group(const __grid_constant__ GroupParams p) {
    after_previous_launch();
    // Number of pairs of each expert, then the place of its next pair.
    __shared__ u32 next[MOST_EXPERTS];
    const u32* chosen = at<const u32>(p.chosen);
    u32 thread = threadIdx.x;
    for (u32 i = thread; i < p.tiles * p.tile; i += ROUTE_THREADS) at<u32>(p.pairs)[i] = ~0u;
    for (u32 e = thread; e < p.of; e += ROUTE_THREADS) next[e] = 0;
    __syncthreads();
    for (u32 i = thread; i < p.count; i += ROUTE_THREADS) atomicAdd(&next[chosen[i]], 1);
    __syncthreads();
    if (thread < 32) {
        u32 before = 0;
#pragma unroll 1
        for (u32 e = thread; e - thread < p.of; e += 32) {
            u32 tiles = e < p.of ? (next[e] + p.tile - 1) / p.tile : 0, end = tiles;
#pragma unroll
            for (u32 d = 1; d < 32; d *= 2) {
                u32 below = __shfl_up_sync(ALL_LANES, end, d);
                if (thread >= d) end += below;
            }
            u32 first = before + end - tiles;
            for (u32 t = first; t < first + tiles; t++) at<u32>(p.experts)[t] = e;
            if (e < p.of) next[e] = first * p.tile;
            before += __shfl_sync(ALL_LANES, end, 31);
        }
    }
    __syncthreads();
    for (u32 i = thread; i < p.count; i += ROUTE_THREADS) at<u32>(p.pairs)[atomicAdd(&next[chosen[i]], 1)] = i;
}

// Weighted sum of a row's results. Grid y is the row.
extern "C" __global__ __launch_bounds__(128) void combine(const __grid_constant__ CombineParams p) {
    after_previous_launch();
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.n) return;
    u64 pair = static_cast<u64>(blockIdx.y) * p.count;
    float sum = 0.0f;
    for (u32 k = 0; k < p.count; k++)
        sum = __fmaf_rn(at<const float>(p.weights)[pair + k], at<const float>(p.results)[(pair + k) * p.n + i], sum);
    at<float>(p.out)[static_cast<u64>(blockIdx.y) * p.n + i] = sum;
}
