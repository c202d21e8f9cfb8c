// Rows of activations for `matmul.cuh`: what `stage.cuh` makes of a row, as `ldmatrix` takes it.
//
// quants  i8 [plane][panel of 8 rows][k / 16][8][16]
// extras  f32 [plane][superblock][EXTRAS][rows]: scales, of a superblock or of its blocks; then sums of blocks
//
// Rows are padded to whole tiles of 128, with zeroes. Grid x is the row.
#pragma once
#include "stage.cuh"

struct QuantiseParams {
    u64 x;
    u64 norm_weight;
    u64 quants;
    u64 extras;
    u32 k;
    u32 rows;
    u32 planes;
    float eps;
};

template <class F>
struct Quantise {
    // Beside a superblock's integers: its scale, then what its blocks have.
    enum : u32 { THREADS = 128, SCALES = F::SPAN == SUPERBLOCK, EXTRAS = SCALES + (F::SUMS || F::SPAN == BLOCK ? 8 : 0) };

    template <int PLANES>
    DEVICE void row(const QuantiseParams& p) {
        typedef Staged<F, PLANES> Staged;
        u32 row = blockIdx.x, padded = gridDim.x, superblocks = (p.k + SUPERBLOCK - 1) / SUPERBLOCK;
        ProjectParams one = {};
        one.x = p.x + 4ull * row * p.k, one.norm_weight = p.norm_weight;
        one.k = p.k, one.rows = row < p.rows, one.eps = p.eps;
        stage<F, 1, PLANES, THREADS>(one);
        u32 pieces = p.k / PIECE;
#pragma unroll 1
        for (u32 plane = 0; plane < PLANES; plane++) {
            uint4* quants = at<uint4>(p.quants) + (static_cast<u64>(plane) * padded + row / PANEL * PANEL) * pieces + row % PANEL;
            for (u32 i = threadIdx.x; i < pieces; i += THREADS)
                quants[i * PANEL] = Staged::record(i / (SUPERBLOCK / PIECE), plane)[i % (SUPERBLOCK / PIECE)];
            float* extras = at<float>(p.extras) + static_cast<u64>(plane) * superblocks * EXTRAS * padded + row;
            for (u32 i = threadIdx.x; i < superblocks * EXTRAS; i += THREADS) {
                u32 s = i / EXTRAS, extra = i % EXTRAS;
                extras[i * padded] = SCALES && extra == 0 ? Staged::scale(s, plane) : Staged::extra(s, plane, extra - SCALES);
            }
        }
    }

    DEVICE void run(const QuantiseParams& p) {
        if (p.planes == 1) row<1>(p);
        else row<2>(p);
    }
};

#define QUANTISE(name, format)                                                                         \
    extern "C" __global__ __launch_bounds__(128) void name(const __grid_constant__ QuantiseParams p) { \
        Quantise<format>::run(p);                                                                      \
    }
