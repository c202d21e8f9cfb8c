// Elementwise functions of one or two operands. The second operand's rows and columns have strides,
// so it may be one row for all, one value per row, or columns of wider rows. Grid y is the row.
#pragma once
#include "base.cuh"

// No `switch`: it would become a jump table.
DEVICE float value_of(u32 function, float a, float b, float by) {
    if (function == Function::ADD) return __fadd_rn(a, b);
    if (function == Function::MULTIPLY) return __fmul_rn(a, b);
    if (function == Function::SCALE) return __fmul_rn(a, by);
    if (function == Function::SOFT_CAP) return soft_capped(by, a);
    if (function == Function::GATE) return __fmul_rn(a, sigmoid(b));
    float value = activated(function == Function::GELU || function == Function::GE_GLU ? GELU : SILU, a);
    return function >= Function::SWI_GLU ? __fmul_rn(value, b) : value;
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
