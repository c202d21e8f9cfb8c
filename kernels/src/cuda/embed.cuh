// Rows of a weight matrix as numbers, bit for bit as ggml's reference decodes them: the embedding.
// One thread decodes 32 columns (8 of F16). An id outside the table gives zeroes.
#pragma once
#include "format.cuh"
#include "params.cuh"

template <class F>
DEVICE void embed(const EmbedParams& p) {
    u32 chunks = (p.k + F::CHUNK - 1) / F::CHUNK;
    u32 blocks = 1;
    if constexpr (!F::PLAIN) blocks = F::BLOCKS;
    u32 item = blockIdx.x * blockDim.x + threadIdx.x;
    if (item >= chunks * blocks) return;
    u32 chunk = item / blocks, block = item % blocks;
    i32 id = at<const i32>(p.ids)[blockIdx.y];
    bool real = id >= 0 && static_cast<u32>(id) < p.n;
    float* out = at<float>(p.out) + static_cast<u64>(blockIdx.y) * p.k;
    typename F::Raw raw = F::load(F::Matrix::make(p.table, p.n, p.k), real ? id : 0, chunk);
    if constexpr (F::PLAIN) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            u32 column = chunk * 8 + i;
            if (column < p.k) out[column] = real ? F::value(raw, i) : 0.0f;
        }
    } else {
        Weights w = {};
#pragma unroll
        for (int b = 0; b < F::BLOCKS; b++)
            if (b == block) w = F::unpack(raw, b, chunk);
        float4* to = reinterpret_cast<float4*>(out + item * 32);
#pragma unroll
        for (int i = 0; i < 32; i += 4) {
            float4 v = {F::value(w, i), F::value(w, i + 1), F::value(w, i + 2), F::value(w, i + 3)};
            to[i / 4] = real ? v : float4{0.0f, 0.0f, 0.0f, 0.0f};
        }
    }
}

#define EMBED(name, format)                                                                              \
    extern "C" __global__ __launch_bounds__(128) void name(const __grid_constant__ EmbedParams p) {      \
        embed<format>(p);                                                                                \
    }
