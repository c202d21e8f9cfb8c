// A function of each element of rows and, for some, of what another operand has beside it: what a plan does between
// its other steps. The other operand's rows and columns have strides, so that it may be one row for all, one value
// for each row, or columns of wider rows. Grid y is the row.
#pragma once
#include "params.cuh"

// In the order of `orind_kernels::params::Function`.
enum : u32 { ADD, MULTIPLY, GATE, SCALE, SOFT_CAP, ACTIVATE_SILU, ACTIVATE_GELU, SWIGLU, GEGLU };

// Without a switch, which would be a table of jumps.
DEVICE float value_of(u32 function, float a, float b, float by) {
    if (function == ADD) return __fadd_rn(a, b);
    if (function == MULTIPLY) return __fmul_rn(a, b);
    if (function == SCALE) return __fmul_rn(a, by);
    if (function == SOFT_CAP) return soft_capped(by, a);
    if (function == GATE) return __fmul_rn(a, sigmoid(b));
    float value = activated(function == ACTIVATE_GELU || function == GEGLU ? GELU : SILU, a);
    return function >= SWIGLU ? __fmul_rn(value, b) : value;
}

extern "C" __global__ __launch_bounds__(128) void elementwise(const __grid_constant__ ElementwiseParams p) {
    after_previous_launch();
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.n) return;
    u64 index = static_cast<u64>(blockIdx.y) * p.n + i;
    float b = 0.0f;
    if (p.b) b = at<const float>(p.b)[static_cast<u64>(blockIdx.y) * p.row_stride + i * p.column_stride];
    at<float>(p.out)[index] = value_of(p.function, at<const float>(p.a)[index], b, p.by);
}
