// Top-k, top-p and min-p: one block finds the candidates of a row and draws among them. The row has
// no NaN, and its largest logit is finite.
//
// Logits below `least` (min-p) are skipped. A first pass counts the others by their distance from
// the largest (256 bins of 1/8) and adds up the weights e^((logit - largest) / temperature). A
// second pass lists possible candidates: for top-k all bins up to that of the k-th, for top-p alone
// all weights that the tail outside p may need. Each candidate is a distinct 64-bit key, logit
// before id; larger is better. A cut is the largest key at or above which there are enough
// candidates, or enough weight, found bit by bit. Weights are integers in units of 2^-31, so sums
// do not depend on the order.
#pragma once
#include "noise.cuh"

template <int THREADS>
struct Cut {
    enum : u32 { BINS = 256 };
    const float* logits;
    u64* list;
    u32 vocabulary;
    float largest, least;
    Draw draw;

    // Both zeroes are equal.
    DEVICE u32 ordered(float v) {
        u32 bits = __float_as_uint(__fadd_rn(v, 0.0f));
        return bits >> 31 ? ~bits : bits | 0x80000000u;
    }
    DEVICE float logit_of(u64 key) {
        u32 bits = static_cast<u32>(key >> 32);
        return __uint_as_float(bits >> 31 ? bits & 0x7fffffffu : ~bits);
    }
    DEVICE u32 id_of(u64 key) { return ~static_cast<u32>(key); }
    DEVICE u64 key_of(float v, u32 id) { return static_cast<u64>(ordered(v)) << 32 | static_cast<u32>(~id); }

    __device__ __forceinline__ u32 bin(float v) const {
        return min(static_cast<u32>(__fmul_rn(__fsub_rn(largest, v), 8.0f)), static_cast<u32>(BINS - 1));
    }
    // Weight in units of 2^-31.
    __device__ __forceinline__ u32 weight(float v) const {
        return static_cast<u32>(__fmul_rn(exp_to_88(__fmul_rn(__fsub_rn(v, largest), draw.scale)), 2147483648.0f));
    }

    DEVICE u64 block_sum(u64 value) {
        __shared__ u64 warps[THREADS / 32];
#pragma unroll
        for (int d = 16; d > 0; d /= 2) value += __shfl_xor_sync(ALL_LANES, value, d);
        __syncthreads();
        if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
        __syncthreads();
        value = 0;
#pragma unroll
        for (int w = 0; w < THREADS / 32; w++) value += warps[w];
        return value;
    }

    // Count (or weight) of list entries with keys of at least `bound`.
    __device__ __forceinline__ u64 above(u32 entries, u64 bound, bool weigh) const {
        u64 sum = 0;
        for (u32 i = threadIdx.x; i < entries; i += THREADS)
            if (list[i] >= bound) sum += weigh ? weight(logit_of(list[i])) : 1;
        return block_sum(sum);
    }

    // Largest key up to `limit` with at least `needed` at or above it.
    __device__ __forceinline__ u64 bound_of(u32 entries, u64 limit, u64 needed, bool weigh) const {
        u64 bound = 0;
#pragma unroll 1
        for (int bit = 63; bit >= 0; bit--) {
            u64 trial = bound | 1ull << bit;
            if (trial <= limit && above(entries, trial, weigh) >= needed) bound = trial;
        }
        return bound;
    }

    // Fraction of a sum of weights.
    DEVICE u64 part_of(u64 total, float p) {
        u64 fraction = static_cast<u32>(__fmul_rn(p, 16777216.0f));
        return (total >> 24) * fraction + ((total & 0xffffffu) * fraction >> 24);
    }

    // Called by all threads of the block; `k` is 0 without top-k.
    __device__ __forceinline__ u32 choose(u32 k, float p, u32 best) const {
        __shared__ u32 counts[BINS], last_bin, entries;
        for (u32 i = threadIdx.x; i < BINS; i += THREADS) counts[i] = 0;
        if (threadIdx.x == 0) entries = 0;
        __syncthreads();
        u64 total = 0;
        for (u32 i = threadIdx.x; i < vocabulary; i += THREADS) {
            float v = logits[i];
            if (v < least) continue;
            atomicAdd(&counts[bin(v)], 1u);
            total += weight(v);
        }
        total = block_sum(total);
        if (threadIdx.x == 0) {
            u32 seen = 0, b = 0;
            for (; b < BINS - 1; b++) {
                seen += counts[b];
                if (k > 0 && seen >= k) break;
            }
            last_bin = b;
        }
        __syncthreads();
        // A weight is irrelevant if a whole vocabulary of it is less than what top-p excludes.
        u64 outside = k > 0 ? 0 : total - part_of(total, p);
        for (u32 i = threadIdx.x; i < vocabulary; i += THREADS) {
            float v = logits[i];
            bool needed = v >= least && bin(v) <= last_bin && static_cast<u64>(weight(v)) * vocabulary >= outside;
            if (needed) list[atomicAdd(&entries, 1u)] = key_of(v, i);
        }
        __threadfence_block();
        __syncthreads();
        u32 n = entries;
        u64 top = key_of(largest, best), bound = 0;
        if (k > 0 && k < n) bound = bound_of(n, top, k, false);
        if (p < 1.0f) {
            if (k > 0) total = above(n, bound, true);
            u64 cut = bound_of(n, top, part_of(total, p), true);
            bound = max(bound, cut);
        }
        Best winner = Best::none();
        for (u32 i = threadIdx.x; i < n; i += THREADS)
            if (list[i] >= bound) draw.offer(winner, logit_of(list[i]), id_of(list[i]));
        return winner.template of_block<THREADS>().id;
    }
};
