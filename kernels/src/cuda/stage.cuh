// Stages rows of activations in shared memory: normalised if requested; 8-bit integers in one or
// two planes for quantised weights, f32 for plain ones. docs/numerics.md defines order and
// rounding.
//
// Column c of ROWS * PLANES is plane c % PLANES of row c / PLANES. A superblock is a run of 16-byte
// pieces: a record per column (integers, then sums of blocks or scales of spans of 32; or f32),
// then the columns' scales if a span is a superblock. The stride of superblocks is odd or 2 mod 8,
// so that the 4 that a warp reads at a time are in different banks.
#pragma once
#include "format.cuh"

extern __shared__ uint4 dynamic_shared[];

template <class F, int COLUMNS>
struct Staged {
    // `orind_kernels::catalogue` has the same formula.
    enum : u32 {
        // Eight scales for spans of 32; then the sums of blocks.
        SCALE_PIECES = F::SPAN == BLOCK ? 2 : 0,
        EXTRAS = SCALE_PIECES + 2 * F::SUMS,
        RECORD = F::SPAN == 0 ? SUPERBLOCK / 4 : SUPERBLOCK / PIECE + EXTRAS,
        SCALES = F::SPAN == SUPERBLOCK ? (COLUMNS + 3) / 4 : 0,
        STRIDE = (COLUMNS * RECORD + SCALES) | 1,
    };

    DEVICE uint4* superblock(u32 s) { return dynamic_shared + s * STRIDE; }
    DEVICE uint4* record(u32 s, u32 column) { return superblock(s) + column * RECORD; }
    // The i-th f32 behind the integers: scales of spans of 32, then sums.
    DEVICE float& extra(u32 s, u32 column, u32 i) {
        return reinterpret_cast<float*>(record(s, column) + SUPERBLOCK / PIECE)[i];
    }
    DEVICE float& sum(u32 s, u32 column, u32 i) { return extra(s, column, 4 * SCALE_PIECES + i); }
    // Scale of a superblock.
    DEVICE float& scale(u32 s, u32 column) {
        return reinterpret_cast<float*>(superblock(s) + COLUMNS * RECORD)[column];
    }
    DEVICE Activations block(u32 s, u32 column, u32 block) {
        const uint4* pieces = record(s, column) + 2 * block;
        Activations out = {pieces[0], pieces[1]};
        if constexpr (SCALE_PIECES > 0) out.scale = extra(s, column, block);
#pragma unroll
        for (int i = 0; i < F::SUMS; i++) out.sums[i] = sum(s, column, F::SUMS * block + i);
        return out;
    }
};

// Sums of squares use 256 strides over the columns, then 32 lanes, then 8 groups of lanes, for any
// number of threads.
enum : u32 { NORM_STRIDES = 256 };
typedef float NormPartial[NORM_STRIDES / 32];

template <int THREADS>
DEVICE void sum_squares(const float* x, u32 k, NormPartial& partial) {
    // All threads of the block iterate equally often, so that shuffles have whole warps.
#pragma unroll
    for (u32 first = 0; first < NORM_STRIDES; first += THREADS) {
        u32 stride = first + threadIdx.x;
        float sum = 0.0f;
        for (u32 i = stride; i < k && stride < NORM_STRIDES; i += NORM_STRIDES) sum = __fmaf_rn(x[i], x[i], sum);
        sum = warp_sum(sum);
        if (stride % 32 == 0 && stride < NORM_STRIDES) partial[stride / 32] = sum;
    }
}

// 1 / sqrt(mean(x^2) + eps)
DEVICE float norm_factor(const NormPartial& partial, u32 k, float eps) {
    float sum = partial[0];
#pragma unroll
    for (int w = 1; w < NORM_STRIDES / 32; w++) sum = __fadd_rn(sum, partial[w]);
    return root_mean_inverse(sum, k, eps);
}

// A lane's 8 of a superblock's 256 values: four of block lane / 8, and four that are 128 columns
// further.
struct Values {
    float4 v[2];
};

// Scale of a span, from its largest magnitude.
struct Step {
    float scale, inverse;

    // From the bits of the largest magnitude, compared as integers: NaN is the largest.
    DEVICE Step make(u32 largest) {
        float magnitude = __uint_as_float(largest);
        if (largest >= INFINITY_BITS) return {quiet_nan(), 0.0f};
        if (magnitude <= 1e-30f) return {0.0f, 0.0f};
        return {__fdiv_rn(magnitude, 127.0f), __fdiv_rn(127.0f, magnitude)};
    }
};

DEVICE u32 largest_of(const float4& v) {
    return max(max(__float_as_uint(v.x) & 0x7fffffffu, __float_as_uint(v.y) & 0x7fffffffu),
               max(__float_as_uint(v.z) & 0x7fffffffu, __float_as_uint(v.w) & 0x7fffffffu));
}

// Rounds `x * inverse` to an integer in the lowest byte, by adding the bias.
DEVICE u32 step_of(float x, float inverse) { return __float_as_uint(__fadd_rn(__fmul_rn(x, inverse), bias())); }

// Remainder after quantisation.
DEVICE float rest_of(float x, u32 steps, int i, float scale) {
    return __fmaf_rn(static_cast<float>(static_cast<i8>(steps >> (8 * i))), -scale, x);
}

// A warp writes one plane of a superblock's 256 values to column `column` and leaves the remainder
// in `values`.
template <class F, int COLUMNS>
DEVICE void quantise(Values& values, u32 s, u32 column) {
    typedef Staged<F, COLUMNS> Staged;
    u32 lane = threadIdx.x % 32;
    // For alternating formats the sums of every other 32 or 16 columns use negated activations.
    bool negated = F::ALTERNATES > 0 && lane / (F::ALTERNATES == 16 ? 4 : 8) % 2 == 1;
    u32 largest[2] = {largest_of(values.v[0]), largest_of(values.v[1])};
    if constexpr (F::SPAN == SUPERBLOCK) largest[0] = largest[1] = max(largest[0], largest[1]);
#pragma unroll
    for (int d = F::SPAN == SUPERBLOCK ? 16 : 4; d > 0; d /= 2) {
        largest[0] = max(largest[0], __shfl_xor_sync(ALL_LANES, largest[0], d));
        if constexpr (F::SPAN == BLOCK) largest[1] = max(largest[1], __shfl_xor_sync(ALL_LANES, largest[1], d));
    }
    Step step = Step::make(largest[0]);
    if (F::SPAN == SUPERBLOCK && lane == 0) Staged::scale(s, column) = step.scale;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (F::SPAN == BLOCK && h == 1) step = Step::make(largest[1]);
        float4& v = values.v[h];
        float inverse = negated ? -step.inverse : step.inverse;
        u32 low = __byte_perm(step_of(v.x, inverse), step_of(v.y, inverse), 0x0040);
        u32 high = __byte_perm(step_of(v.z, inverse), step_of(v.w, inverse), 0x0040);
        u32 steps = __byte_perm(low, high, 0x5410);
        reinterpret_cast<u32*>(Staged::record(s, column))[32 * h + lane] = steps;
        float scale = negated ? -step.scale : step.scale;
        v = {rest_of(v.x, steps, 0, scale), rest_of(v.y, steps, 1, scale), rest_of(v.z, steps, 2, scale),
             rest_of(v.w, steps, 3, scale)};
        if (F::SPAN == BLOCK && lane % 8 == 0) Staged::extra(s, column, 4 * h + lane / 8) = step.scale;
        if constexpr (F::SUMS > 0) {
            constexpr u32 LANES = 8 / F::SUMS;
            i32 sum = dot4(steps, 0x01010101u, 0);
#pragma unroll
            for (u32 d = LANES / 2; d > 0; d /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, d);
            if (lane % LANES == 0)
                Staged::sum(s, column, 4 * F::SUMS * h + lane / LANES) = static_cast<float>(negated ? -sum : sum);
        }
    }
}

template <class F, int ROWS, int PLANES, int THREADS>
DEVICE void stage(const ProjectParams& p) {
    typedef Staged<F, ROWS * PLANES> Staged;
    __shared__ NormPartial partial[ROWS];
    const float* norm = at<const float>(p.norm_weight);
    if (norm) {
#pragma unroll 1
        for (u32 m = 0; m < p.rows; m++)
            sum_squares<THREADS>(at<const float>(p.x) + static_cast<u64>(m) * p.k, p.k, partial[m]);
        __syncthreads();
    }
    u32 lane = threadIdx.x % 32, superblocks = (p.k + SUPERBLOCK - 1) / SUPERBLOCK;
    // Columns without a row, and missing columns of a last superblock, are zero.
#pragma unroll 1
    for (u32 m = 0; m < ROWS; m++) {
        const float* x = at<const float>(p.x) + static_cast<u64>(m) * p.k;
        u32 columns = m < p.rows ? p.k : 0;
        float factor = norm && columns ? norm_factor(partial[m], p.k, p.eps) : 1.0f;
#pragma unroll 1
        for (u32 s = threadIdx.x / 32; s < superblocks; s += THREADS / 32) {
            if constexpr (F::SPAN == 0) {
#pragma unroll
                for (u32 i = lane; i < SUPERBLOCK; i += 32) {
                    u32 column = s * SUPERBLOCK + i;
                    float v = column < columns ? x[column] : 0.0f;
                    if (norm && column < columns) v = __fmul_rn(__fmul_rn(v, factor), norm[column]);
                    reinterpret_cast<float*>(Staged::record(s, m))[i] = v;
                }
            } else {
                Values values = {};
#pragma unroll
                for (u32 h = 0; h < 2; h++) {
                    u32 column = s * SUPERBLOCK + 128 * h + 4 * lane;
                    if (column >= columns) continue;
                    float4 v = *reinterpret_cast<const float4*>(x + column);
                    if (norm) {
                        float4 w = *reinterpret_cast<const float4*>(norm + column);
                        v = {__fmul_rn(__fmul_rn(v.x, factor), w.x), __fmul_rn(__fmul_rn(v.y, factor), w.y),
                             __fmul_rn(__fmul_rn(v.z, factor), w.z), __fmul_rn(__fmul_rn(v.w, factor), w.w)};
                    }
                    values.v[h] = v;
                }
#pragma unroll
                for (u32 plane = 0; plane < PLANES; plane++)
                    quantise<F, ROWS * PLANES>(values, s, m * PLANES + plane);
            }
        }
    }
    __syncthreads();
}
