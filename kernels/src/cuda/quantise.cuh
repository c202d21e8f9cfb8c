// Quantises rows of activations for `matmul.cuh`, with the values of `stage.cuh` in the order in
// which tiles are multiplied.
//
// [tile of rows][superblock][plane] of records. A record is two halves, each
//   i8   [4 blocks][rows / 8][2][8][16]   in `ldmatrix` order
//   f32  [1 or 2][4 blocks][rows]         scales and sums of blocks, if the format needs them
// followed by
//   f32  [rows]                           scales of superblocks, if the format needs them
//
// Rows are padded to whole tiles, columns to whole superblocks, with zeroes. Grid x is the row, or
// the place of a pair if pairs of row and expert are grouped (`group` in `mixture.cuh`); `share`
// pairs have one row.
#pragma once
#include "stage.cuh"

// Row (or pair) at a place of a tile; out of range if the place is empty.
DEVICE u32 row_at(u64 pairs, u32 place) { return pairs ? at<const u32>(pairs)[place] : place; }

template <class F>
struct Record {
    enum : u32 { SCALES = F::SPAN == BLOCK, OF_BLOCK = SCALES + F::SUMS, OF_ALL = F::SPAN == SUPERBLOCK };
    // Bytes per row of a tile: in a half record, and in a whole one.
    enum : u32 { HALF = 4 * BLOCK + 4 * 4 * OF_BLOCK, ALL = 2 * HALF + 4 * OF_ALL };
};

template <class F>
struct Quantise {
    enum : u32 { THREADS = 128, HALF = Record<F>::HALF, PIECES = SUPERBLOCK / PIECE };

    template <int PLANES>
    DEVICE void row(const QuantiseParams& p) {
        typedef Staged<F, PLANES> Staged;
        u32 row = blockIdx.x % p.tile, superblocks = (p.k + SUPERBLOCK - 1) / SUPERBLOCK;
        ProjectParams one = {};
        u32 own = row_at(p.pairs, blockIdx.x);
        one.x = p.x + 4ull * (own / p.share) * p.k, one.norm_weight = p.norm_weight;
        one.k = p.k, one.rows = own < p.rows, one.eps = p.eps;
        stage<F, 1, PLANES, THREADS>(one);
        u32 record = p.tile * Record<F>::ALL;
        u8* tile = at<u8>(p.out) + static_cast<u64>(blockIdx.x / p.tile) * superblocks * PLANES * record;
#pragma unroll 1
        for (u32 i = threadIdx.x; i < superblocks * PLANES * PIECES; i += THREADS) {
            u32 s = i / PIECES / PLANES, plane = i / PIECES % PLANES, piece = i % PIECES, block = piece / 2 % 4;
            u8* half = tile + static_cast<u64>(i / PIECES) * record + piece / 8 * p.tile * HALF;
            u32 to = block * p.tile * BLOCK + row / PANEL * 2 * PIECE_STRIDE + piece % 2 * PIECE_STRIDE + row % PANEL * PIECE;
            *reinterpret_cast<uint4*>(half + to) = Staged::record(s, plane)[piece];
#pragma unroll
            for (u32 j = 0; j < Record<F>::OF_BLOCK; j++) {
                if (piece % 2 == 1) continue;
                reinterpret_cast<float*>(half + p.tile * 4 * BLOCK)[(4 * j + block) * p.tile + row] = j < Record<F>::SCALES
                    ? Staged::extra(s, plane, piece / 2)
                    : Staged::sum(s, plane, F::SUMS * (piece / 2) + j - Record<F>::SCALES);
            }
            if (Record<F>::OF_ALL && piece == PIECES - 1)
                reinterpret_cast<float*>(half + p.tile * HALF)[row] = Staged::scale(s, plane);
        }
    }

    DEVICE void run(const QuantiseParams& p) {
        // An empty tile is never read.
        if (row_at(p.pairs, blockIdx.x / p.tile * p.tile) >= p.rows) return;
        if (p.planes == 1) row<1>(p);
        else row<2>(p);
    }
};

#define QUANTISE(name, format)                                                                         \
    extern "C" __global__ __launch_bounds__(128) void name(const __grid_constant__ QuantiseParams p) { \
        after_previous_launch();                                                                       \
        Quantise<format>::run(p);                                                                      \
    }
