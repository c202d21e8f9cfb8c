// Activation rows in shared memory, as products read them: normalised if asked; for quantised
// weights as 8-bit blocks of 32 in one or two planes, for plain ones as f32.
//
// Quantisation of a block: `scale = max|x| / 127`, `q = round(x / scale)`, ties to even; below
// 1e-30 everything is 0; with a NaN or an infinity in it the scale is NaN. The second plane is what
// the first one left over. All of it depends on nothing but the 32 values.
//
// Column c of ROWS * PLANES is plane c % PLANES of row c / PLANES. Piece j (16 bytes) of chunk h of
// column c lies at (c * PIECES + j) * stride + h: neighbouring lanes read neighbouring chunks, free
// of bank conflicts; the stride keeps the words that a warp writes in different banks as well.
#pragma once
#include "format.cuh"
#include "params.cuh"

extern __shared__ uint4 dynamic_shared[];

// Pieces between piece j and j + 1 of a column. `orind_kernels::catalogue` knows the same formula.
template <class F>
DEVICE u32 piece_stride(u32 chunks) {
    return round_up(chunks, 8u) + 8 / F::PIECES;
}

template <class F, int COLUMNS>
struct Staged {
    uint4* pieces;
    float* scales;
    float* sums;
    u32 stride;

    DEVICE Staged make(u32 chunks) {
        Staged s;
        s.stride = piece_stride<F>(chunks);
        s.pieces = dynamic_shared;
        s.scales = reinterpret_cast<float*>(s.pieces + COLUMNS * F::PIECES * s.stride);
        s.sums = s.scales;
        if constexpr (!F::PLAIN) s.sums += COLUMNS * F::BLOCKS * s.stride;
        return s;
    }
    __device__ __forceinline__ uint4 piece(int column, int j, u32 chunk) const {
        return pieces[(column * F::PIECES + j) * stride + chunk];
    }
    __device__ __forceinline__ Activations block(int column, int b, u32 chunk) const {
        u32 index = (column * F::BLOCKS + b) * stride + chunk;
        float sum = 0.0f;
        if constexpr (F::SUMS) sum = sums[index];
        return {piece(column, 2 * b, chunk), piece(column, 2 * b + 1, chunk), scales[index], sum};
    }
    // The word of columns k .. k + 4 of quantised activations.
    __device__ __forceinline__ u32& quants(u32 column, u32 k) const {
        u32* words = reinterpret_cast<u32*>(pieces + (column * F::PIECES + k % F::CHUNK / 16) * stride);
        return words[k / F::CHUNK * 4 + k % 16 / 4];
    }
    __device__ __forceinline__ u32 block_index(u32 column, u32 k) const {
        return (column * F::BLOCKS + k % F::CHUNK / 32) * stride + k / F::CHUNK;
    }
    // One f32 activation.
    __device__ __forceinline__ float& plain(u32 column, u32 k) const {
        float* floats = reinterpret_cast<float*>(pieces + (column * F::PIECES + k % F::CHUNK / 4) * stride);
        return floats[k / F::CHUNK * 4 + k % 4];
    }
};

// Sums of squares are taken in 256 strides over the columns, then over 32 lanes, then over the 8
// warps of lanes, however many threads there are.
enum : u32 { NORM_STRIDES = 256 };
typedef float NormPartial[NORM_STRIDES / 32];

template <int THREADS>
DEVICE void sum_squares(const float* x, u32 k, NormPartial& partial) {
    // The loop is one of the block, so that warps are whole where lanes exchange sums.
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

// Four of a block's 32 values, which lie in 8 neighbouring lanes, as 8-bit steps.
struct Quantised {
    u32 word;
    float scale;
    float sum;

    DEVICE Quantised make(float4 v) {
        // As integers, so that a NaN counts as the largest.
        u32 largest = max(max(__float_as_uint(v.x) & 0x7fffffffu, __float_as_uint(v.y) & 0x7fffffffu),
                          max(__float_as_uint(v.z) & 0x7fffffffu, __float_as_uint(v.w) & 0x7fffffffu));
#pragma unroll
        for (int d = 4; d > 0; d /= 2) largest = max(largest, __shfl_xor_sync(ALL_LANES, largest, d));
        float magnitude = __uint_as_float(largest);
        // Scaled by 2^-20 and back, so that neither the reciprocal nor its operand is subnormal.
        float inverse = __fmul_rn(reciprocal(__fmul_rn(magnitude, 0x1p-20f)), 127.0f * 0x1p-20f);
        if (!(magnitude > 1e-30f)) inverse = 0.0f;
        Quantised out;
        out.scale = magnitude > 1e-30f ? __fmul_rn(magnitude, 1.0f / 127.0f) : 0.0f;
        if (largest >= INFINITY_BITS) out.scale = quiet_nan();
        u32 low = __byte_perm(step(v.x, inverse), step(v.y, inverse), 0x0040);
        u32 high = __byte_perm(step(v.z, inverse), step(v.w, inverse), 0x0040);
        out.word = __byte_perm(low, high, 0x5410);
        i32 sum = dot4(0x01010101u, out.word, 0);
#pragma unroll
        for (int d = 4; d > 0; d /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, d);
        out.sum = __fmul_rn(out.scale, static_cast<float>(sum));
        return out;
    }
    // What the steps left over.
    __device__ __forceinline__ float4 rest(float4 v) const {
        return {left(v.x, 0), left(v.y, 1), left(v.z, 2), left(v.w, 3)};
    }

private:
    // The integer nearest to `x * inverse` in the lowest byte: added to 1.5 * 2^23 it ends up in the
    // lowest bits of the mantissa.
    DEVICE u32 step(float x, float inverse) {
        return __float_as_uint(__fmaf_rn(x, inverse, 12582912.0f));
    }
    __device__ __forceinline__ float left(float x, int i) const {
        return __fmaf_rn(-scale, static_cast<float>(static_cast<i8>(word >> (8 * i))), x);
    }
};

template <class F, int ROWS, int PLANES, int THREADS>
DEVICE void stage(const ProjectParams& p, const Staged<F, ROWS * PLANES>& staged) {
    __shared__ NormPartial partial[ROWS];
    const float* norm = at<const float>(p.norm_weight);
    if (norm) {
#pragma unroll 1
        for (u32 m = 0; m < p.rows; m++)
            sum_squares<THREADS>(at<const float>(p.x) + static_cast<u64>(m) * p.k, p.k, partial[m]);
        __syncthreads();
    }
    // Columns without a row are zero.
#pragma unroll 1
    for (u32 m = 0; m < ROWS; m++) {
        const float* x = at<const float>(p.x) + static_cast<u64>(m) * p.k;
        bool real = m < p.rows;
        float factor = norm && real ? norm_factor(partial[m], p.k, p.eps) : 1.0f;
        if constexpr (F::PLAIN) {
            u32 padded = round_up(p.k, static_cast<u32>(F::CHUNK));
            for (u32 i = threadIdx.x; i < padded; i += THREADS) {
                float v = real && i < p.k ? x[i] : 0.0f;
                if (norm && i < p.k) v = __fmul_rn(__fmul_rn(v, factor), norm[i]);
                staged.plain(m, i) = v;
            }
        } else {
#pragma unroll 1
            for (u32 base = 0; base < p.k; base += 4 * THREADS) {
                u32 i = base + 4 * threadIdx.x;
                bool inside = i < p.k;
                float4 v = {0.0f, 0.0f, 0.0f, 0.0f};
                if (real && inside) {
                    v = *reinterpret_cast<const float4*>(x + i);
                    if (norm) {
                        float4 w = *reinterpret_cast<const float4*>(norm + i);
                        v = {__fmul_rn(__fmul_rn(v.x, factor), w.x), __fmul_rn(__fmul_rn(v.y, factor), w.y),
                             __fmul_rn(__fmul_rn(v.z, factor), w.z), __fmul_rn(__fmul_rn(v.w, factor), w.w)};
                    }
                }
#pragma unroll
                for (int plane = 0; plane < PLANES; plane++) {
                    Quantised q = Quantised::make(v);
                    u32 column = m * PLANES + plane;
                    if (inside) {
                        staged.quants(column, i) = q.word;
                        if (threadIdx.x % 8 == 0) {
                            u32 index = staged.block_index(column, i);
                            staged.scales[index] = q.scale;
                            if constexpr (F::SUMS) staged.sums[index] = q.sum;
                        }
                    }
                    if (plane + 1 < PLANES) v = q.rest(v);
                }
            }
        }
    }
    __syncthreads();
}
