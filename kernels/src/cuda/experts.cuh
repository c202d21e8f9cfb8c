// Matmuls of pairs (row and expert) with the expert's matrices, with the loops of `project.cuh`. A
// block takes one pair, looks up its expert and stages its row, so only chosen experts are read.
//
// Grid: x = blocks that loop over the matrix's tiles, y = pair.
#pragma once
#include "project.cuh"

template <class F, int LANES, int OUTPUTS, int WARPS, int UNROLL>
DEVICE void multiply_pair(const ExpertsParams& p) {
    typedef Project<F, 1, 1, LANES, OUTPUTS, WARPS, UNROLL> Project;
    u32 pair = blockIdx.y;
    u64 expert = at<const u32>(p.chosen)[pair];
    ProjectParams one = {};
    one.x = p.x + static_cast<u64>(pair / p.share) * p.k * 4;
    u64 out = p.out + static_cast<u64>(pair) * p.n * 4, bias = expert * p.n * 4;
    one.segments[0] = {p.first + expert * p.stride, out, p.first_bias ? p.first_bias + bias : 0, p.n, 1};
    one.segments[1] = {p.second + expert * p.stride, 0, p.second_bias ? p.second_bias + bias : 0, p.n, 1};
    one.k = p.k, one.rows = 1, one.swiglu = p.glu;
    stage<F, 1, 1, Project::THREADS>(one);
    u32 written = p.glu ? OUTPUTS / 2 : OUTPUTS;
    u32 panels = (p.n + PANEL - 1) / PANEL, tiles = (panels + Project::GROUPS * written - 1) / (Project::GROUPS * written);
#pragma unroll 1
    for (u32 index = blockIdx.x; index < tiles; index += gridDim.x) Project::tile(one, 0, written, index);
}

#define EXPERTS(name, format, lanes, outputs, warps, unroll)                              \
    extern "C" __global__ __launch_bounds__(warps * 32, 1) void name(                     \
        const __grid_constant__ ExpertsParams p) {                                        \
        after_previous_launch();                                                          \
        multiply_pair<format, lanes, outputs, warps, unroll>(p);                          \
    }
