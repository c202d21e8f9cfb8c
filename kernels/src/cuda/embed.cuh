// Embedding: gathers rows of a weight matrix, decoded bit for bit as ggml's reference does. A
// thread decodes 32 columns. An id outside the table gives zeroes.
#pragma once
#include "format.cuh"

template <class F>
DEVICE void embed(const EmbedParams& p) {
    u32 item = blockIdx.x * blockDim.x + threadIdx.x;
    if (item >= (p.k + BLOCK - 1) / BLOCK) return;
    u32 s = item / (SUPERBLOCK / BLOCK), chunk = item * BLOCK % SUPERBLOCK / F::CHUNK;
    i32 id = at<const i32>(p.ids)[blockIdx.y];
    bool real = id >= 0 && static_cast<u32>(id) < p.n;
    u32 row = real ? id : 0;
    float* out = at<float>(p.out) + static_cast<u64>(blockIdx.y) * p.k + item * BLOCK;
    Superblock place = Matrix<F>::make(p.table, p.n, p.k).superblock(row / PANEL, row % PANEL, s);
    typename F::Raw raw = F::load(place, chunk);
    if constexpr (F::SPAN == 0) {
#pragma unroll
        for (int i = 0; i < static_cast<int>(BLOCK); i++)
            if (item * BLOCK + i < p.k) out[i] = real ? F::value(raw, i) : 0.0f;
    } else {
        constexpr int BLOCKS = F::CHUNK / BLOCK;
        typename F::Head head = F::head(place);
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            if (b != static_cast<int>(item % BLOCKS)) continue;
            Weights w = F::unpack(head, raw, chunk, b);
            float4* to = reinterpret_cast<float4*>(out);
#pragma unroll
            for (int i = 0; i < static_cast<int>(BLOCK); i += 4) {
                float4 v = {F::value(w, b, i), F::value(w, b, i + 1), F::value(w, b, i + 2), F::value(w, b, i + 3)};
                to[i / 4] = real ? v : float4{0.0f, 0.0f, 0.0f, 0.0f};
            }
        }
    }
}

#define EMBED(name, format)                                                                              \
    extern "C" __global__ __launch_bounds__(128) void name(const __grid_constant__ EmbedParams p) {      \
        after_previous_launch();                                                                         \
        embed<format>(p);                                                                                \
    }
