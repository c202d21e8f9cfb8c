// Operations on whole rows that fusion left between projections: gather, RMSNorm, addition, SwiGLU.
#pragma once
#include "stage.cuh"

// out[i] = table[ids[i]], words; zeroes for an index outside the table. Grid y is the row.
extern "C" __global__ __launch_bounds__(128) void gather(const __grid_constant__ GatherParams p) {
    after_previous_launch();
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.width) return;
    i32 id = at<const i32>(p.ids)[blockIdx.y];
    bool real = id >= 0 && static_cast<u32>(id) < p.extent;
    u32 value = real ? at<const u32>(p.table)[static_cast<u64>(id) * p.width + i] : 0;
    at<u32>(p.out)[static_cast<u64>(blockIdx.y) * p.width + i] = value;
}

// out = x / sqrt(mean(x^2) + eps) * weight; x is `a`, the weight `b`. One block a row.
extern "C" __global__ __launch_bounds__(256) void rms_norm(const __grid_constant__ RowsParams p) {
    after_previous_launch();
    __shared__ NormPartial partial;
    const float* x = at<const float>(p.a) + static_cast<u64>(blockIdx.x) * p.n;
    float* out = at<float>(p.out) + static_cast<u64>(blockIdx.x) * p.n;
    sum_squares<256>(x, p.n, partial);
    __syncthreads();
    float factor = norm_factor(partial, p.n, p.eps);
    for (u32 i = threadIdx.x; i < p.n; i += 256)
        out[i] = __fmul_rn(__fmul_rn(x[i], factor), at<const float>(p.b)[i]);
}

// out = a + b, n values in each row. Grid y is the row.
extern "C" __global__ __launch_bounds__(128) void add(const __grid_constant__ RowsParams p) {
    after_previous_launch();
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.n) return;
    u64 index = static_cast<u64>(blockIdx.y) * p.n + i;
    at<float>(p.out)[index] = __fadd_rn(at<const float>(p.a)[index], at<const float>(p.b)[index]);
}

// out = a / (1 + e^-a) * b, likewise.
extern "C" __global__ __launch_bounds__(128) void swiglu(const __grid_constant__ RowsParams p) {
    after_previous_launch();
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.n) return;
    u64 index = static_cast<u64>(blockIdx.y) * p.n + i;
    at<float>(p.out)[index] = glu_product(SILU, at<const float>(p.a)[index], at<const float>(p.b)[index]);
}

// Sum over a row in the order of a norm (256 strides), in every thread of the block.
template <class Term>
DEVICE float sum_of_row(u32 n, NormPartial& partial, Term term) {
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < n; i += NORM_STRIDES) sum = term(i, sum);
    sum = warp_sum(sum);
    __syncthreads();
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = partial[0];
#pragma unroll
    for (int w = 1; w < NORM_STRIDES / 32; w++) sum = __fadd_rn(sum, partial[w]);
    return sum;
}

// out = (x - mean) / sqrt(mean((x - mean)^2) + eps) * weight + bias: LayerNorm; RMSNorm has a mean
// of 0. One block a row.
extern "C" __global__ __launch_bounds__(256) void normalise(const __grid_constant__ NormParams p) {
    after_previous_launch();
    __shared__ NormPartial partial;
    const float* x = at<const float>(p.x) + static_cast<u64>(blockIdx.x) * p.n;
    const float* bias = at<const float>(p.bias);
    float* out = at<float>(p.out) + static_cast<u64>(blockIdx.x) * p.n;
    float mean = 0.0f;
    if (p.centred) {
        mean = sum_of_row(p.n, partial, [&](u32 i, float sum) { return __fadd_rn(x[i], sum); });
        mean = __fdiv_rn(mean, static_cast<float>(p.n));
    }
    float squares = sum_of_row(p.n, partial, [&](u32 i, float sum) {
        float v = __fsub_rn(x[i], mean);
        return __fmaf_rn(v, v, sum);
    });
    float factor = root_mean_inverse(squares, p.n, p.eps);
    for (u32 i = threadIdx.x; i < p.n; i += NORM_STRIDES) {
        float y = __fmul_rn(__fmul_rn(__fsub_rn(x[i], mean), factor), at<const float>(p.weight)[i]);
        out[i] = bias ? __fadd_rn(y, bias[i]) : y;
    }
}
