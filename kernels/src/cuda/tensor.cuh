// Kernels of tensor operations: interpreted fused groups, matmul, gather, scatter and top-k.
#pragma once
#include "tensor_group.cuh"

extern "C" __global__ __launch_bounds__(128) void tensor(const __grid_constant__ TensorParams p) {
    after_previous_launch();
    File file = registers();
    // Constants are in the first registers.
#pragma unroll
    for (u32 c = 0; c < TENSOR_OPERANDS; c++) file[c][threadIdx.x] = p.constants[c];
    run(p, Listed{p.reduce, p.elements, p.outer, p.length, p.inner});
}

// a [.., M, K] times b [.., N, K] transposed. The last two strides are those of the matrices. Sums
// are f32, in column order. Grid: x = columns, y = rows, z = matrices.
extern "C" __global__ __launch_bounds__(128) void tensor_matmul(const __grid_constant__ TensorMatmulParams p) {
    after_previous_launch();
    enum : u32 { SIDE = 32, DEEP = 16, OWN = SIDE * SIDE / TENSOR_THREADS };
    __shared__ float left[DEEP][SIDE + 1], right[DEEP][SIDE + 1];
    u32 batch = blockIdx.z, a_at = 0, b_at = 0;
#pragma unroll 1
    for (u32 axis = p.axes - 2; axis-- > 0;) {
        u32 i = batch % p.shape[axis];
        batch /= p.shape[axis];
        a_at += i * p.a_strides[axis];
        b_at += i * p.b_strides[axis];
    }
    u32 row_at = blockIdx.y * SIDE, column_at = blockIdx.x * SIDE;
    auto value = [](u64 base, u32 width, u32 place) {
        if (width == Width::WORD) return at<const float>(base)[place];
        u32 half = at<const u16>(base)[place];
        return width == Width::HALF ? half_to_float(half) : number(half << 16);
    };
    float sums[OWN] = {};
    u32 column = threadIdx.x % SIDE, row = threadIdx.x / SIDE;
#pragma unroll 1
    for (u32 k = 0; k < p.k; k += DEEP) {
        for (u32 i = threadIdx.x; i < SIDE * DEEP; i += TENSOR_THREADS) {
            u32 deep = i % DEEP, side = i / DEEP;
            bool inside = k + deep < p.k;
            left[deep][side] = inside && row_at + side < p.m
                ? value(p.a, p.a_width, a_at + (row_at + side) * p.a_strides[p.axes - 2] + (k + deep) * p.a_strides[p.axes - 1])
                : 0.0f;
            right[deep][side] = inside && column_at + side < p.n
                ? value(p.b, p.b_width, b_at + (column_at + side) * p.b_strides[p.axes - 2] + (k + deep) * p.b_strides[p.axes - 1])
                : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (u32 d = 0; d < DEEP; d++) {
            if (k + d >= p.k) break;
#pragma unroll
            for (u32 o = 0; o < OWN; o++) sums[o] = __fmaf_rn(left[d][row + 4 * o], right[d][column], sums[o]);
        }
        __syncthreads();
    }
    float* out = at<float>(p.out) + static_cast<u64>(blockIdx.z) * p.m * p.n;
#pragma unroll
    for (u32 o = 0; o < OWN; o++) {
        u32 to = row_at + row + 4 * o;
        if (to < p.m && column_at + column < p.n) out[to * p.n + column_at + column] = sums[o];
    }
}

// out[i] = source[indices[i]]; zeroes for an index outside the table.
extern "C" __global__ __launch_bounds__(128) void tensor_gather(const __grid_constant__ TensorRowsParams p) {
    after_previous_launch();
    u32 element = blockIdx.x * TENSOR_THREADS + threadIdx.x;
    if (element >= p.elements) return;
    u32 row = element / p.width, place = 0, value = 0;
    bool inside = true;
#pragma unroll
    for (u32 axis = 0; axis < TENSOR_INDICES; axis++) {
        if (axis >= p.leading) break;
        u32 index = static_cast<u32>(at<const i32>(p.indices[axis])[row * p.apart[axis]]);
        inside = inside && index < p.extents[axis];
        place += index * p.source.strides[axis];
    }
    if (inside) value = loaded(p.source, element % p.width, place, p.leading);
    stored(p.out, p.out_width, element, value);
}

// out[indices[i]] = source[i], the last of rows with equal indices; or for scatter-add their sum in
// f64, zero without rows. The table is dense; a thread has one element and scans all indices.
extern "C" __global__ __launch_bounds__(128) void tensor_scatter(const __grid_constant__ TensorRowsParams p) {
    after_previous_launch();
    u32 element = blockIdx.x * TENSOR_THREADS + threadIdx.x;
    if (element >= p.elements) return;
    u32 own = element / p.width, value = 0, place[TENSOR_INDICES] = {};
#pragma unroll
    for (u32 axis = TENSOR_INDICES; axis-- > 0;) {
        if (axis >= p.leading) continue;
        place[axis] = own % p.extents[axis];
        own /= p.extents[axis];
    }
    double sum = 0.0;
    bool found = p.adds;
#pragma unroll 1
    for (u32 row = 0; row < p.count; row++) {
        bool here = true;
#pragma unroll
        for (u32 axis = 0; axis < TENSOR_INDICES; axis++)
            if (axis < p.leading) here = here && static_cast<u32>(at<const i32>(p.indices[axis])[row * p.apart[axis]]) == place[axis];
        if (!here) continue;
        value = loaded(p.source, row * p.width + element % p.width);
        sum = __dadd_rn(sum, static_cast<double>(number(value)));
        found = true;
    }
    if (found) stored(p.out, p.out_width, element, p.adds ? bits(__double2float_rn(sum)) : value);
}

// Indices of the largest elements of a row, best first, ties by index; NaN is the largest. Each
// pass finds the best element behind the previous one. One block per row.
extern "C" __global__ __launch_bounds__(128) void tensor_top_k(const __grid_constant__ TensorTopKParams p) {
    after_previous_launch();
    __shared__ float values[TENSOR_THREADS];
    __shared__ u32 numbers[TENSOR_THREADS];
    auto above = [](float a, float b) { return a > b || (a != a && b == b); };
    auto before = [&](float a, u32 i, float b, u32 j) { return above(a, b) || (!above(b, a) && i < j); };
    const float* x = at<const float>(p.x) + static_cast<u64>(blockIdx.x) * p.row_stride;
    float last = 0.0f;
    u32 last_at = 0;
#pragma unroll 1
    for (u32 k = 0; k < p.count; k++) {
        float best = 0.0f;
        u32 best_at = ALL_LANES;
#pragma unroll 1
        for (u32 i = threadIdx.x; i < p.n; i += TENSOR_THREADS) {
            float value = x[i * p.column_stride];
            if (k > 0 && !before(last, last_at, value, i)) continue;
            if (best_at == ALL_LANES || before(value, i, best, best_at)) best = value, best_at = i;
        }
        values[threadIdx.x] = best;
        numbers[threadIdx.x] = best_at;
        __syncthreads();
#pragma unroll 1
        for (u32 half = TENSOR_THREADS / 2; half > 0; half /= 2) {
            if (threadIdx.x < half) {
                u32 i = numbers[threadIdx.x], j = numbers[threadIdx.x + half];
                bool other = j != ALL_LANES && (i == ALL_LANES || before(values[threadIdx.x + half], j, values[threadIdx.x], i));
                if (other) values[threadIdx.x] = values[threadIdx.x + half], numbers[threadIdx.x] = j;
            }
            __syncthreads();
        }
        last = values[0];
        last_at = numbers[0];
        if (threadIdx.x == 0) at<u32>(p.out)[static_cast<u64>(blockIdx.x) * p.count + k] = last_at;
        __syncthreads();
    }
}
