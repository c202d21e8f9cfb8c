// Matrices times one to eight rows, with norm in front and residual or SiLU-product behind.
//
// A block stages the activations once and then walks over tiles of matrix rows, `gridDim.x` apart.
// LANES lanes share a group of OUTPUTS matrix rows (so an activation read from shared memory serves
// OUTPUTS weights); lane t takes chunks t, t + LANES, ..., UNROLL of them at a turn, in loads of
// VECTOR bytes. With STAGES the bytes of STAGES - 1 turns ahead are asked for before a turn's products.
// Products of a run of weights are added up in CHAINS that do not wait for each other.
//
// Order of a sum: the chunks of a lane in turn; planes; lanes of a warp by halving distance; where
// LANES are several warps, those in turn. It depends on LANES and the format, on nothing else: not
// on rows, OUTPUTS, WARPS, UNROLL, STAGES, VECTOR, CHAINS (whose sums are integers) or grid.
#pragma once
#include "stage.cuh"

template <class F, int ROWS, int PLANES, int LANES, int OUTPUTS, int WARPS, int UNROLL, int STAGES, int VECTOR,
          int CHAINS>
struct Project {
    // Of the lanes that share rows, WIDTH are in each of SPLITS warps.
    enum : int { THREADS = WARPS * 32, COLUMNS = ROWS * PLANES, WIDTH = LANES < 32 ? LANES : 32, SPLITS = LANES / WIDTH };
    enum : u32 { GROUPS = THREADS / LANES };
    typedef typename F::Matrix Matrix;
    typedef typename F::Raw Raw;
    typedef Staged<F, COLUMNS> Activation;

    // `weights` of a chunk of OUTPUTS rows times the activations of all columns.
    DEVICE void products(const Raw (&raw)[OUTPUTS], const Activation& staged, u32 chunk,
                         float (&sums)[COLUMNS][OUTPUTS]) {
        if constexpr (F::PLAIN) {
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                uint4 low = staged.piece(c, 0, chunk), high = staged.piece(c, 1, chunk);
#pragma unroll
                for (int r = 0; r < OUTPUTS; r++) {
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        float x = __uint_as_float(i < 4 ? word(low, i) : word(high, i - 4));
                        sums[c][r] = __fmaf_rn(F::value(raw[r], i), x, sums[c][r]);
                    }
                }
            }
        } else {
#pragma unroll
            for (int b = 0; b < F::BLOCKS; b++) {
                Weights weights[OUTPUTS];
#pragma unroll
                for (int r = 0; r < OUTPUTS; r++) weights[r] = F::unpack(raw[r], b, chunk);
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                    Activations a = staged.block(c, b, chunk);
#pragma unroll
                    for (int r = 0; r < OUTPUTS; r++)
                        sums[c][r] = F::template dot<CHAINS>(weights[r], a, sums[c][r]);
                }
            }
        }
    }

    // Adds the later warps' values of a group to those of its first, in turn; true in that one. All
    // warps of the block come here, as often as each other.
    DEVICE bool sum_warps(float& value) {
        __shared__ float exchange[GROUPS][SPLITS - 1][32];
        u32 group = threadIdx.x / LANES, split = threadIdx.x % LANES / 32, lane = threadIdx.x % 32;
        if (split > 0) exchange[group][split - 1][lane] = value;
        __syncthreads();
        if (split == 0) {
#pragma unroll
            for (int s = 0; s < SPLITS - 1; s++) value = __fadd_rn(value, exchange[group][s][lane]);
        }
        // The next tile's values may not come before these are read.
        __syncthreads();
        return split == 0;
    }

    // Which rows a group reads, of n, and how many chunks they have.
    struct Rows {
        u32 base, written, n, chunks;
    };

    // The bytes of a turn; the upper half of the rows may come from another matrix.
    DEVICE void load(const Matrix& lower, const Matrix& upper, const Rows& rows, u32 start,
                     Raw (&raw)[UNROLL][OUTPUTS]) {
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            u32 chunk = start + u * LANES;
            if (chunk < rows.chunks) {
#pragma unroll
                for (int r = 0; r < OUTPUTS; r++) {
                    // Beyond the last row the last is read again and not written.
                    u32 row = min(rows.base + (r & (rows.written - 1)), rows.n - 1);
                    raw[u][r] = F::template load<VECTOR>(r < OUTPUTS / 2 ? lower : upper, row, chunk);
                }
            }
        }
    }

    // Tiles of a matrix, of which a group writes WRITTEN outputs.
    template <int WRITTEN>
    DEVICE u32 tiles_of(u32 n) {
        return (n + GROUPS * WRITTEN - 1) / (GROUPS * WRITTEN);
    }

    DEVICE void run(const ProjectParams& p) {
        u32 chunks = (p.k + F::CHUNK - 1) / F::CHUNK;
        Activation staged = Activation::make(chunks);
        stage<F, ROWS, PLANES, THREADS>(p, staged);
        // Outputs of a group: with SiLU-product, half as many as matrix rows.
        u32 written = p.swiglu ? OUTPUTS / 2 : OUTPUTS;
        u32 segments = p.swiglu ? 1 : 3;
        u32 first = blockIdx.x;
#pragma unroll 1
        for (u32 s = 0; s < segments; s++) {
            u32 n = p.segments[s].n;
            u32 tiles = p.swiglu ? tiles_of<OUTPUTS / 2>(n) : tiles_of<OUTPUTS>(n);
#pragma unroll 1
            for (; first < tiles; first += gridDim.x) tile(p, s, written, first, chunks, staged);
            first -= tiles;
        }
    }

    DEVICE void tile(const ProjectParams& p, u32 segment, u32 written, u32 index, u32 chunks,
                     const Activation& staged) {
        u32 n = p.segments[segment].n;
        u32 lane = threadIdx.x % LANES;
        u32 base = (index * GROUPS + threadIdx.x / LANES) * written;
        Rows rows = {base, written, n, chunks};
        Matrix lower = Matrix::make(p.segments[segment].weights, n, p.k);
        Matrix upper = Matrix::make(p.segments[p.swiglu ? 1 : segment].weights, n, p.k);
        float sums[COLUMNS][OUTPUTS] = {};
        Raw raw[STAGES][UNROLL][OUTPUTS];
        constexpr u32 TURN = LANES * UNROLL, AHEAD = STAGES - 1;
#pragma unroll
        for (u32 s = 0; s < AHEAD; s++) load(lower, upper, rows, lane + s * TURN, raw[s]);
#pragma unroll 1
        for (u32 first = lane; first < chunks; first += STAGES * TURN) {
#pragma unroll
            for (u32 s = 0; s < STAGES; s++) {
                u32 start = first + s * TURN;
                load(lower, upper, rows, start + AHEAD * TURN, raw[(s + AHEAD) % STAGES]);
#pragma unroll
                for (int u = 0; u < UNROLL; u++) {
                    u32 chunk = start + u * LANES;
                    if (chunk < chunks) products(raw[s][u], staged, chunk, sums);
                }
            }
        }
        float totals[ROWS * OUTPUTS];
#pragma unroll
        for (int r = 0; r < OUTPUTS; r++) {
#pragma unroll
            for (int m = 0; m < ROWS; m++) {
                float sum = sums[m * PLANES][r];
                if (PLANES == 2) sum = __fadd_rn(sum, sums[m * PLANES + PLANES - 1][r]);
                totals[r * ROWS + m] = sum;
            }
        }
        bool writer;
        u32 held = scatter_sum<ROWS * OUTPUTS, WIDTH>(totals, lane, writer);
        constexpr int KEPT = ROWS * OUTPUTS > WIDTH ? ROWS * OUTPUTS / WIDTH : 1;
        if constexpr (SPLITS > 1) {
            static_assert(KEPT == 1 && WARPS % SPLITS == 0, "a value for each lane, and whole groups");
            writer = sum_warps(totals[0]) && writer;
        }
#pragma unroll
        for (int i = 0; i < KEPT; i++) {
            u32 r = (held + i) / ROWS, m = (held + i) % ROWS;
            float value = totals[i];
            // The first exchange parted gates from ups.
            if (p.swiglu) value = silu_product(value, __shfl_xor_sync(ALL_LANES, value, WIDTH / 2));
            u32 row = base + r;
            if (writer && r < written && m < p.rows && row < n) {
                u64 to = static_cast<u64>(m) * n + row;
                if (p.residual) value = __fadd_rn(value, at<const float>(p.residual)[to]);
                at<float>(p.segments[segment].out)[to] = value;
            }
        }
    }
};

#define PROJECT(name, format, rows, planes, ...)                                                           \
    extern "C" __global__ __launch_bounds__(Project<format, rows, planes, __VA_ARGS__>::THREADS, 1) void   \
        name(const __grid_constant__ ProjectParams p) {                                                    \
        Project<format, rows, planes, __VA_ARGS__>::run(p);                                                \
    }
