// Generated kernels of fused groups: like `run` of `tensor_group.cuh`, but a thread loads several
// elements at once and a row has more threads. The variant decides which thread computes an element
// and when it is loaded; sums have the order of `run`, so no variant changes a bit.
#pragma once
#include "tensor_group.cuh"

// Without a reduction: a thread has `unroll` elements, `threads` apart.
template <class Group, u32 threads, u32 unroll>
DEVICE void run_elements(const TensorParams& p) {
    u32 first = blockIdx.x * (threads * unroll) + threadIdx.x;
    Group g[unroll];
#pragma unroll
    for (u32 j = 0; j < unroll; j++) {
        if (first + j * threads < Group::elements) g[j].load(p, false, first + j * threads);
    }
#pragma unroll
    for (u32 j = 0; j < unroll; j++) {
        if (first + j * threads < Group::elements) g[j].steps(p, false, first + j * threads);
    }
}

// Steps after a reduction.
template <class Group>
DEVICE void finish(const TensorParams& p, u32 index, const Reduced& total) {
    Group g;
    g.own = total.value(Group::reduce);
    g.load(p, true, index);
    g.steps(p, true, index);
}

// Reduces up to `unroll` of the next `count` elements in order, `apart` from each other.
template <class Group, u32 unroll>
DEVICE void reduce_some(const TensorParams& p, u32 element, u32 apart, u32 count, Reduced& total) {
    Group g[unroll];
#pragma unroll
    for (u32 j = 0; j < unroll; j++) {
        if (j < count) g[j].load(p, false, element + j * apart);
    }
#pragma unroll
    for (u32 j = 0; j < unroll; j++) {
        if (j >= count) continue;
        g[j].steps(p, false, element + j * apart);
        total.take(Group::reduce, g[j].own);
    }
}

// Reduction of columns: a thread sums one in order.
template <class Group, u32 threads, u32 unroll>
DEVICE void run_columns(const TensorParams& p) {
    u32 index = blockIdx.x * threads + threadIdx.x;
    if (index >= Group::outer * Group::inner) return;
    u32 element = index / Group::inner * Group::length * Group::inner + index % Group::inner;
    Reduced total = Reduced::none(Group::reduce);
#pragma unroll 1
    for (u32 i = 0; i < Group::length; i += unroll, element += unroll * Group::inner) {
        reduce_some<Group, unroll>(p, element, Group::inner, Group::length - i, total);
    }
    finish<Group>(p, index, total);
}

// Reduction of rows: 16 threads have 16 sums over 256 columns, for `per_row` / 16 such spans at a
// time; the results are added in order.
template <class Group, u32 threads, u32 unroll, u32 per_row>
DEVICE void run_rows(const TensorParams& p) {
    enum : u32 { SPANS = per_row / ROW_LANES };
    u32 row = blockIdx.x * (threads / per_row) + threadIdx.x / per_row;
    u32 span = threadIdx.x % per_row / ROW_LANES, lane = threadIdx.x % ROW_LANES;
    Reduced total = Reduced::none(Group::reduce);
#pragma unroll 1
    for (u32 begin = 0; begin < Group::length; begin += SPANS * ROW_BLOCK) {
        u32 end = min(begin + (span + 1) * ROW_BLOCK, static_cast<u32>(Group::length));
        Reduced part = Reduced::none(Group::reduce);
        if (row < Group::outer) {
#pragma unroll 1
            for (u32 column = begin + span * ROW_BLOCK + lane; column < end; column += unroll * ROW_LANES) {
                u32 count = (end - column + ROW_LANES - 1) / ROW_LANES;
                reduce_some<Group, unroll>(p, row * Group::length + column, ROW_LANES, count, part);
            }
        }
        __syncwarp();
        part = part.gathered(Group::reduce);
        if constexpr (SPANS == 1) {
            total.add(Group::reduce, part);
        } else {
            __shared__ Reduced parts[threads / ROW_LANES];
            if (lane == 0) parts[threadIdx.x / ROW_LANES] = part;
            __syncthreads();
#pragma unroll 1
            for (u32 s = 0; s < SPANS && begin + s * ROW_BLOCK < Group::length; s++) {
                total.add(Group::reduce, parts[threadIdx.x / per_row * SPANS + s]);
            }
            __syncthreads();
        }
    }
    if (row < Group::outer && threadIdx.x % per_row == 0) finish<Group>(p, row, total);
}

template <class Group, u32 threads, u32 unroll, u32 per_row>
DEVICE void run_group(const TensorParams& p) {
    if constexpr (Group::reduce == Reduction::NONE) run_elements<Group, threads, unroll>(p);
    else if constexpr (Group::inner == 1) run_rows<Group, threads, unroll, per_row>(p);
    else run_columns<Group, threads, unroll>(p);
}
