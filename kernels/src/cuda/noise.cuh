// Noise of the sampler: Philox4x32-10 (Salmon et al., SC 2011) keyed by the seed with counter
// (position, id), as a standard Gumbel variate. Defined by `plan::sample`.
#pragma once
#include "base.cuh"

// Upper bound of a variate: -ln(-ln(1 - 2^-24)), rounded up.
#define GUMBEL_MAX 16.7f

DEVICE u32 philox(u32 c0, u32 c1, u64 key) {
    u32 c2 = 0, c3 = 0, k0 = static_cast<u32>(key), k1 = static_cast<u32>(key >> 32);
#pragma unroll 1
    for (int round = 0; round < 10; round++) {
        u32 high_a = __umulhi(0xd2511f53u, c0), low_a = 0xd2511f53u * c0;
        u32 high_b = __umulhi(0xcd9e8d57u, c2), low_b = 0xcd9e8d57u * c2;
        c0 = high_b ^ c1 ^ k0;
        c1 = low_b;
        c2 = high_a ^ c3 ^ k1;
        c3 = low_a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return c0;
}

// Natural logarithm of a positive normal number, to 2e-7: the exponent's, plus a polynomial of the
// mantissa, which is taken to be in [sqrt(1/2), sqrt(2)).
DEVICE float logarithm(float x) {
    i32 bits = __float_as_int(x), power = (bits - 0x3f3504f3) >> 23;
    float r = __fsub_rn(__int_as_float(bits - power * 0x800000), 1.0f);
    float y = __fmaf_rn(-8.101559e-2f, r, 1.2712307e-1f);
    y = __fmaf_rn(y, r, -1.2972239e-1f);
    y = __fmaf_rn(y, r, 1.4202175e-1f);
    y = __fmaf_rn(y, r, -1.6642247e-1f);
    y = __fmaf_rn(y, r, 2.0001468e-1f);
    y = __fmaf_rn(y, r, -2.5000298e-1f);
    y = __fmaf_rn(y, r, 3.3333328e-1f);
    y = __fmaf_rn(y, r, -0.5f);
    y = __fmaf_rn(__fmul_rn(r, r), y, r);
    return __fmaf_rn(static_cast<float>(power), 0.693147182f, y);
}

DEVICE float gumbel(u64 seed, u32 position, u32 id) {
    u32 word = philox(position, id, seed) >> 8;
    float uniform = __fmul_rn(__fadd_rn(static_cast<float>(word), 0.5f), 1.0f / 16777216.0f);
    // The largest word would round to 1, whose variate is infinite.
    uniform = fminf(uniform, 0x1.fffffep-1f);
    return -logarithm(-logarithm(uniform));
}

// A value and its token; ties go to the lowest id.
struct Best {
    float value;
    u32 id;

    DEVICE Best none() { return {-infinity(), 0xffffffffu}; }
    __device__ __forceinline__ void take(float v, u32 i) {
        if (v > value || (v == value && i < id)) value = v, id = i;
    }
    // Best of a block, in every thread.
    template <int THREADS>
    __device__ __forceinline__ Best of_block() const {
        __shared__ Best warps[THREADS / 32];
        Best best = *this;
#pragma unroll
        for (int d = 16; d > 0; d /= 2) {
            float v = __shfl_xor_sync(ALL_LANES, best.value, d);
            u32 i = __shfl_xor_sync(ALL_LANES, best.id, d);
            best.take(v, i);
        }
        __syncthreads();
        if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
        __syncthreads();
        best = warps[0];
#pragma unroll
        for (int w = 1; w < THREADS / 32; w++) best.take(warps[w].value, warps[w].id);
        return best;
    }
};

// Draw over candidates: the largest logit * scale + noise. Noise is computed only if it could still
// win.
struct Draw {
    float scale;
    u64 seed;
    u32 position;
    __device__ __forceinline__ void offer(Best& best, float logit, u32 id) const {
        float score = __fmul_rn(logit, scale);
        if (__fadd_rn(score, GUMBEL_MAX) >= best.value && score > -infinity())
            best.take(__fadd_rn(score, gumbel(seed, position, id)), id);
    }
};
